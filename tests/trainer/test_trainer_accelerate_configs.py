from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType


FOLDER = Path(__file__).parents[2] / "recipes" / "accelerate_configs"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_the_set_is_there():
    assert {"single", "ddp", "fsdp2"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path):
    # accelerate refuses keys it does not know.
    config = load_config_from_file(str(path))
    expected = {"single": DistributedType.NO, "ddp": DistributedType.MULTI_GPU, "fsdp2": DistributedType.FSDP}
    if path.stem in expected:
        assert config.distributed_type == expected[path.stem]
    assert config.num_processes >= 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_launch_takes_it(path):
    arguments = launch_command_parser().parse_args(
        ["--config_file", str(path), "-m", "hf_pretrain.scripts.pretrain", "--config", "F.yaml"]
    )
    arguments, config, _ = _validate_launch_command(arguments)
    assert arguments.training_script == "hf_pretrain.scripts.pretrain"
    assert arguments.module
    if path.stem == "fsdp2":
        assert arguments.use_fsdp
        assert int(arguments.fsdp_version) == 2
