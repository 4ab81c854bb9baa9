"""Looking changes nothing: a run with effect checks, precision audit and autopsies is the run without, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_training import equal_weights, tiny_llama, tiny_strata, trainer, weights

from hf_pretrain.callbacks.effect_checks import EffectChecksCallback
from hf_pretrain.trainer.autopsy_callback import AutopsyCallback
from hf_pretrain.trainer.precision import PrecisionCallback


MODELS = {
    "llama": lambda: tiny_llama(attention_dropout=0.3),
    "moe": lambda: tiny_strata(
        attention_dropout=0.2,
        expert_dropout=0.2,
        router_noise="gumbel",
        router_bias_update_rate=0.01,
        expert_capacity_factor=1.5,
        balance_scope="global",
    ),
}
# What a clock measures differs from run to run.
CLOCKS = ("runtime", "per_second", "mfu", "seconds", "goodput")


class NoPrecision(PrecisionCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self._gradients = {}

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        pass


def lines(run):
    return [
        {key: value for key, value in line.items() if not any(word in key for word in CLOCKS)}
        for line in run.state.log_history
    ]


def optimizer_state(run):
    return [value for state in run.optimizer.state_dict()["state"].values() for value in state.values()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_effect_checks_and_audit_change_nothing(tmp_path, name, bf16):
    options = {"bf16": bf16, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    watched = trainer(tmp_path / "1", MODELS[name](), **options)
    watched.train()
    assert watched.find_callback(EffectChecksCallback).found["z_loss"] == "acts"
    blind = [EffectChecksCallback(enabled=False), NoPrecision()]
    plain = trainer(tmp_path / "2", MODELS[name](), callbacks=blind, **options)
    plain.train()
    assert equal_weights(weights(watched), weights(plain))
    assert lines(watched) == lines(plain)
    pairs = zip(optimizer_state(watched), optimizer_state(plain), strict=True)
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_autopsies_change_nothing(tmp_path, name):
    class Always(AutopsyCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step in (0, 4, 6):
                self.examine(state.global_step + 1)

    def run(folder, limit):
        options = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
        made = trainer(folder, MODELS[name](), steps=8, callbacks=[Always(limit, min_distance=1)], **options)
        made.train()
        return made

    with_them, without = run(tmp_path / "1", 10), run(tmp_path / "2", 0)
    assert sorted(with_them.find_callback(Always).written) == [1, 5, 7]
    assert not without.find_callback(Always).written
    assert equal_weights(weights(with_them), weights(without))
    assert lines(with_them) == lines(without)


@pytest.mark.slow
def test_two_processes_look_alike_and_change_nothing(tmp_path):
    worker = Path(__file__).with_name("watching_worker.py")
    paths = os.pathsep.join(str(path) for path in (worker.parents[2], worker.parents[1]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    finished = subprocess.run(
        [*command, str(worker), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["watched"]["checks"] == second["watched"]["checks"]
    assert first["watched"]["checks"]["load_balance"] == "acts"
    assert (first["watched"]["written"], second["watched"]["written"]) == ([3], [])
    assert first["watched"]["losses"] == first["blind"]["losses"]
    for rank in range(2):
        watched, blind = (
            torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for name in ("watched", "blind")
        )
        assert equal_weights(watched, blind)
    assert first["broken"] == second["broken"] and "nothing reads it" in first["broken"]
