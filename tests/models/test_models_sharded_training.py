"""Tensor, expert and fully sharded parallelism on gloo: logits, gradients and three optimizer steps equal one process.

Every case runs three optimizer steps of two micro-batches each, with evaluations before and between, so that what only
goes wrong at the second backward or after a forward without backward is seen.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sharded_training_worker import LAYOUTS, MODELS, build

from hf_pretrain.models.strata.configuration_strata import StrataConfig


WORKER = Path(__file__).with_name("sharded_training_worker.py")
# layout : model : loss : experts implementation
TWO = [
    "tp:dense-tied:plain:eager",
    "tp:dense-tied:fused:eager",
    "tp:dense-untied:fused:eager",
    "tp:moe-tied:fused:eager",
    "tp:moe-capacity:plain:grouped_mm",
    "ep_tp:moe-untied:fused:eager",
    "ep_tp:moe-capacity:plain:grouped_mm",
    "ep_reduce:moe-tied:plain:grouped_mm",
    "ep_fsdp:moe-tied:fused:eager",
    "ep_fsdp:moe-untied:plain:grouped_mm",
    "fsdp:dense-tied:fused:eager",
    "fsdp:dense-untied:fused:eager",
    "fsdp:dense-untied:plain:eager",
    "fsdp:moe-tied:fused:eager",
    "fully_shard:dense-tied:fused:eager",
    "fully_shard:dense-untied:fused:eager",
    "fully_shard:moe-untied:fused:grouped_mm",
    "fully_shard_apart:dense-untied:fused:eager",
]
FOUR = ["fsdp_tp:dense-tied:fused:eager", "fsdp_tp:moe-untied:fused:eager"]


def _run(folder, world, cases):
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), str(rank), str(world), *cases],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [one.communicate(timeout=100)[0] for one in workers]
    finally:
        for one in workers:
            one.kill()
    assert [one.returncode for one in workers] == [0] * world, outputs[0][-3000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    for name in MODELS:
        build(name, folder).save_pretrained(folder / name)
    _run(folder, 1, TWO + FOUR)
    _run(folder, 2, TWO)
    return folder


def _assert_equal(folder, case, world):
    stem = case.replace(":", "_")
    one = torch.load(folder / f"{stem}.1.0.pt", weights_only=True)
    ranks = [torch.load(folder / f"{stem}.{world}.{rank}.pt", weights_only=True) for rank in range(world)]
    parts = LAYOUTS.get(case.split(":")[0], {"fsdp_size": 2}).get("fsdp_size", 1)
    leaders = ranks[:: world // parts]  # one of each group that holds the same rows
    torch.testing.assert_close(torch.cat([part["logits"] for part in leaders]), one["logits"], atol=1e-5, rtol=0)
    losses = torch.tensor([part["losses"] for part in leaders]).sum(0)
    torch.testing.assert_close(losses, torch.tensor(one["losses"]), atol=1e-5, rtol=0)
    for part in ranks:
        assert part["gradients"].keys() == one["gradients"].keys()
        assert part["weights"].keys() == one["weights"].keys()
        for kind in ("gradients", "weights"):
            for name, value in one[kind].items():
                torch.testing.assert_close(
                    part[kind][name],
                    value,
                    atol=1e-5,
                    rtol=0,
                    msg=lambda text, name=name, kind=kind: f"{kind} {name}: {text}",
                )
        if "metrics" in one:
            assert part["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    biases = [value for name, value in one["weights"].items() if name.endswith("e_score_correction_bias")]
    assert all(bias.abs().max() > 0 for bias in biases)  # the update did something


@pytest.mark.slow
@pytest.mark.parametrize("case", TWO)
def test_two_processes_train_as_one(folder, case):
    _assert_equal(folder, case, 2)


@pytest.mark.slow
def test_four_processes_shard_and_split(folder):
    _run(folder, 4, FOUR)
    for case in FOUR:
        _assert_equal(folder, case, 4)


def test_the_plans_name_what_is_there():
    for name in MODELS:
        config = StrataConfig(**MODELS[name])
        modules = {key for key, _ in build(name, None).model.named_modules()}
        parameters = {key for key, _ in build(name, None).model.named_parameters()}
        for plan in (config.base_model_tp_plan, config.base_model_ep_plan):
            for rule in plan:
                keys = {rule.replace("*", str(layer)) for layer in range(config.num_hidden_layers)}
                sparse_only = "experts" in rule or "shared_expert" in rule
                if sparse_only == bool(config.num_experts) or "self_attn" in rule:
                    assert keys & (modules | parameters), rule


def test_local_parts_of_experts_run_in_the_autocast_dtype():
    experts = build("moe-tied", None).model.layers[1].mlp.experts
    experts._parameters["down_proj"] = experts.down_proj.detach()[:2]  # as the stack swaps shards in
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert experts.down_proj.dtype == experts.gate_up_proj.dtype == torch.bfloat16
    assert experts.down_proj.dtype == torch.float32
