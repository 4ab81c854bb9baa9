"""The optimizers and clippings of this package inside a run."""

import pytest
import torch
from tiny_training import arguments, equal_weights, tiny_llama, tiny_strata, trainer, weights
from torch import nn
from transformers import TrainerCallback

from hf_pretrain.optim.muon import MuonWithAdamW
from hf_pretrain.optim.stable_adamw import StableAdamW
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
from hf_pretrain.trainer.optimizing import CLIPPING_FILE
from hf_pretrain.utils.errors import UserError


class Gradients(TrainerCallback):
    """The norm of what the optimizer gets."""

    def __init__(self):
        self.norms = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())


def logged_norms(run):
    return [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry]


@pytest.mark.parametrize(("name", "kind"), [("muon", MuonWithAdamW), ("stable_adamw", StableAdamW)])
def test_the_optimizer_trains(tmp_path, name, kind):
    run = trainer(tmp_path, tiny_strata(), steps=6, optim=name, learning_rate=5e-3)
    run.train()
    assert isinstance(run.optimizer.optimizer, kind)
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.05


def test_options_reach_the_optimizer(tmp_path):
    run = trainer(tmp_path, tiny_strata(), optim="muon", optim_args="momentum=0.9,ns_steps=3")
    groups = run.create_optimizer().param_groups
    assert {(g["momentum"], g["ns_steps"]) for g in groups if g["kind"] != "adamw"} == {(0.9, 3)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optim": "muon", "optim_args": "momentun=0.9"}, "Did you mean 'momentum'"),
        ({"optim": "muon", "optim_args": "ns_steps=five"}, "ns_steps = 'five'"),
        ({"optim": "stable_adamw", "optim_args": "beta=1"}, "has no options beside those of AdamW"),
        ({"clipping": "zclip", "max_grad_norm": 0.0}, "max_grad_norm = 0 turns clipping off"),
        ({"clipping": "agc"}, "clipping"),
        ({"max_runtime": "4 hours"}, "max_runtime = '4 hours'"),
        ({"schedule": "infinite"}, "num_cooldown_steps = None"),
        ({"schedule": "infinite", "lr_scheduler_kwargs": {"cooldown": 3}}, "cooldown_steps"),
        ({"schedule": "wsd", "lr_scheduler_kwargs": {"cooldown_steps": 3}}, "only schedule: infinite"),
        ({"schedule": "infinite", "lr_scheduler_kwargs": {"cooldown_steps": 6}}, "phases must not overlap"),
        ({"schedule": "d2z", "min_lr_ratio": 0.1}, "d2z decays to zero"),
    ],
)
def test_refused_before_the_first_step(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        arguments(tmp_path, **options)


def test_muon_without_a_matrix_is_refused(tmp_path):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(64, 4)

    run = trainer(tmp_path, tiny_llama(), optim="muon")
    with pytest.raises(UserError, match="no matrix beside embeddings"):
        run.create_optimizer(Table())


@pytest.mark.parametrize("clipping", ["norm", "zclip", "adagc"])
def test_the_logged_norm_is_the_one_before_clipping(tmp_path, clipping):
    gradients = Gradients()
    run = trainer(tmp_path, tiny_llama(), steps=4, clipping=clipping, max_grad_norm=0.01, callbacks=[gradients])
    run.train()
    assert all(norm > 0.02 for norm in logged_norms(run))
    assert gradients.norms == pytest.approx([0.01] * 4, rel=1e-3)


def test_zclip_clips_what_is_unusual_below_the_bound(tmp_path):
    gradients = Gradients()
    run = trainer(tmp_path, tiny_llama(), steps=4, clipping="zclip", max_grad_norm=100.0, callbacks=[gradients])
    run._clipper = None
    load = run._load_optimizer_and_scheduler

    def with_statistics(checkpoint):
        load(checkpoint)
        from hf_pretrain.optim.clipping import ZClipStatistics

        run._clipper = ZClipStatistics(mean=0.05, variance=1e-6)

    run._load_optimizer_and_scheduler = with_statistics
    run.create_optimizer_and_scheduler(4)
    with_statistics(None)
    run.train()
    assert logged_norms(run)[0] > 0.1
    assert gradients.norms[0] < 0.06


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "muon"},
        {"optim": "stable_adamw", "clipping": "zclip"},
        {"clipping": "adagc", "max_grad_norm": 0.05},
        {"schedule": "infinite", "lr_scheduler_kwargs": {"cooldown_steps": 2}, "clipping": "zclip"},
    ],
    ids=str,
)
def test_resumed_is_straight(tmp_path, options):
    options = {"save_strategy": "steps", "save_steps": 3, "warmup_steps": 1, **options}
    straight = trainer(tmp_path / "straight", tiny_strata(), **options)
    straight.train()
    resumed = trainer(tmp_path / "resumed", tiny_strata(seed=5), **options)
    resumed.train(tmp_path / "straight" / "checkpoint-3")
    assert equal_weights(weights(resumed), weights(straight))
    held = (latest_complete_checkpoint(tmp_path / "straight") / CLIPPING_FILE).is_file()
    assert held == (options.get("clipping") is not None)


@pytest.mark.parametrize("options", [{"optim": "muon"}, {"clipping": "adagc"}], ids=str)
def test_another_optimizer_or_clipping_is_no_silent_change(tmp_path, options):
    run = trainer(tmp_path, save_strategy="steps", save_steps=3)
    run.train()
    with pytest.raises(UserError, match=f"{next(iter(options))} = "):
        trainer(tmp_path, save_strategy="steps", save_steps=3, **options).train(tmp_path / "checkpoint-3")


def test_an_infinite_run_is_made_longer_before_its_decay(tmp_path):
    options = {
        "schedule": "infinite",
        "lr_scheduler_kwargs": {"cooldown_steps": 2, "constant_ratio": 0.4},
        "warmup_steps": 1,
        "save_strategy": "steps",
        "save_steps": 4,
        "decay_fraction": 0.25,
    }
    trainer(tmp_path, steps=8, **options).train()
    longer = trainer(tmp_path, steps=12, **options)
    longer.train(tmp_path / "checkpoint-4")
    rates = [entry["learning_rate"] for entry in longer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3, 7e-4, *[4e-4] * 7, 2.6666667e-4, 1.3333333e-4, 0.0])


def test_the_end_of_the_time_is_a_clean_stop(tmp_path):
    import signal

    run = trainer(tmp_path, save_strategy="steps", save_steps=100, max_runtime="0.000001s")
    run.train()
    assert (run.state.global_step, run.interrupted_by) == (1, signal.SIGTERM)
    assert latest_complete_checkpoint(tmp_path).name == "checkpoint-1"
    again = trainer(tmp_path, save_strategy="steps", save_steps=100, max_runtime="1d")
    again.train(True)
    assert again.interrupted_by is None and again.state.global_step == 6
