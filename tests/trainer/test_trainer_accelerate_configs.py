"""accelerate's own parsers read every launch configuration, and a layout that does not fit stops with one line."""

import math
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from tiny_training import arguments

from hf_pretrain.trainer.launch_layout import check_layout, check_stage_layout
from hf_pretrain.utils.errors import UserError


FOLDER = Path(__file__).parents[2] / "recipes" / "accelerate_configs"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_the_set_is_there():
    assert {path.stem for path in FILES} == {"single", "ddp", "fsdp2", "hsdp", "fsdp2_tp", "fsdp2_cp", "zero3"}
    table = (FOLDER / "README.md").read_text()
    assert all(f"| `{path.name}` |" in table for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path):
    # accelerate refuses keys it does not know.
    config = load_config_from_file(str(path))
    expected = {"single": DistributedType.NO, "ddp": DistributedType.MULTI_GPU, "zero3": DistributedType.DEEPSPEED}
    assert config.distributed_type == expected.get(path.stem, DistributedType.FSDP)
    assert config.num_processes % config.num_machines == 0
    sizes = [value for key, value in (config.parallelism_config or {}).items() if key.endswith("_size")]
    assert math.prod(sizes) == (config.num_processes if sizes else 1)
    assert bool(sizes) == (path.stem in ("hsdp", "fsdp2_tp", "fsdp2_cp"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_launch_takes_it(path):
    arguments = launch_command_parser().parse_args(
        ["--config_file", str(path), "-m", "hf_pretrain.scripts.pretrain", "--config", "F.yaml"]
    )
    arguments, config, _ = _validate_launch_command(arguments)
    assert arguments.training_script == "hf_pretrain.scripts.pretrain"
    assert arguments.module
    assert arguments.use_deepspeed == (path.stem == "zero3")
    if path.stem.startswith(("fsdp2", "hsdp")):
        assert arguments.use_fsdp
        assert int(arguments.fsdp_version) == 2
        # The environment that every process would get passes our own check, and not with one process fewer.
        environment = {key: str(value) for key, value in prepare_multi_gpu_env(arguments).items()}
        check_layout({**environment, "WORLD_SIZE": str(arguments.num_processes)})
        if arguments.use_parallelism_config:
            with pytest.raises(UserError, match="sizes must multiply to the number of processes"):
                check_layout({**environment, "WORLD_SIZE": str(arguments.num_processes - 1)})


def launch(**sizes):
    named = {f"PARALLELISM_CONFIG_{name.upper()}_SIZE": str(size) for name, size in sizes.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "WORLD_SIZE": "8", **named}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (launch(dp_shard=4, tp=3), "dp_shard_size 4 x tp_size 3 = 12, but 8"),
        (launch(), "all sizes 1 = 1, but 8"),
        (launch(tp="two"), "tp_size = two; allowed are whole numbers"),
        (launch(cp=2, sp=4), "both split the sequence"),
        (launch(dp_replicate=4, tp=2), "set dp_shard_size above 1"),
    ],
)
def test_a_layout_that_cannot_be(environment, message):
    with pytest.raises(UserError, match=message):
        check_layout(environment)


def test_layouts_that_can_be():
    check_layout(launch(dp_shard=4, tp=2))
    check_layout(launch(dp_replicate=2, dp_shard=4))
    check_layout(launch(sp=4))
    check_layout({"WORLD_SIZE": "8"})


def test_it_stops_before_the_first_step(tmp_path, monkeypatch):
    for key, value in {**launch(tp=2), "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(UserError, match="tp_size 2 = 2, but 1 process"):
        arguments(tmp_path)


def test_a_stage_refuses_what_needs_a_model_loaded_by_a_plan():
    on = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}
    with pytest.raises(UserError, match="parallelism_config_tp_size = 2; a stage builds its model whole"):
        check_stage_layout({**on, "PARALLELISM_CONFIG_TP_SIZE": "2"})
    check_stage_layout({**on, "PARALLELISM_CONFIG_DP_SHARD_SIZE": "8", "PARALLELISM_CONFIG_TP_SIZE": "1"})
    check_stage_layout({"PARALLELISM_CONFIG_TP_SIZE": "2"})
