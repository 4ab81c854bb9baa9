"""What routers add to training does not depend on how a global batch is cut: CE, z, router z, balance, bias."""

import pytest
import torch
from tiny_training import tiny_strata, trainer

from hf_pretrain.models.strata.routing_strata import max_violation


SHARES = (8, 2, 1)  # micro-batches of a global batch of 8, with 1, 4 and 8 of them an update


def run(folder, micro, **fields):
    model = tiny_strata(router_z_loss_coef=0.01, **fields)
    with torch.no_grad():  # a router with preferences, so that the balance term is no constant
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(20.0)
    # Plain SGD: Adam's first updates are signs, which turn rounding noise into differences of the learning rate.
    options = {"optim": "sgd", "learning_rate": 0.05, "z_loss_coef": 1e-3, "per_device_train_batch_size": micro}
    result = trainer(folder, model, steps=3, **options)
    result.train()
    return [line for line in result.state.log_history if "loss" in line], model


@pytest.mark.parametrize("scope", ["micro", "global", "sequence"])
def test_ce_z_and_router_z_are_those_of_the_global_batch(tmp_path, scope):
    (whole, *later), _ = run(tmp_path / "8", 8, balance_scope=scope, router_aux_loss_coef=0.1)
    assert whole["z_loss"] > 0 and whole["router/z"] > 0 and whole["router/load_balance"] > 1.05
    for micro in SHARES[1:]:
        (part, *part_later), _ = run(tmp_path / str(micro), micro, balance_scope=scope, router_aux_loss_coef=0.1)
        for key in ("ce_loss", "z_loss", "router/z", "router/load_balance", "router/max_vio"):
            assert part[key] == pytest.approx(whole[key], abs=1e-5), key
        # The term is a mean over the window: weighted by 0.1 it cannot move the loss by its own size, as a sum would.
        assert part["loss"] == pytest.approx(whole["loss"], abs=0.05)
        if scope == "sequence":  # rows do not see each other: the whole run is the same
            assert part["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
            for one, other in zip(part_later, later, strict=True):
                for key in ("loss", "ce_loss", "router/z"):
                    assert one[key] == pytest.approx(other[key], rel=1e-5), key


def test_bias_moves_once_an_update_by_the_counts_of_the_global_batch(tmp_path):
    biases = {}
    for micro in SHARES:
        fields = {"router_aux_loss_coef": 0.0, "router_bias_update_rate": 0.01, "scoring_func": "sigmoid"}
        _, model = run(tmp_path / str(micro), micro, **fields)
        biases[micro] = torch.stack([layer.mlp.gate.e_score_correction_bias for layer in model.model.layers])
    steps = biases[8] / 0.01
    torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
    assert steps.abs().max() == 3  # three updates, not three times the micro-batches
    for micro in SHARES[1:]:
        torch.testing.assert_close(biases[micro], biases[8])


def test_bias_is_saved_restored_and_goes_on(tmp_path):
    fields = {"router_aux_loss_coef": 0.0, "router_bias_update_rate": 0.01}
    options = {"optim": "sgd", "learning_rate": 0.05, "per_device_train_batch_size": 4}
    whole = trainer(tmp_path / "whole", tiny_strata(**fields), steps=4, **options)
    whole.train()
    first = trainer(tmp_path / "cut", tiny_strata(**fields), steps=4, save_strategy="steps", save_steps=2, **options)
    first.train()
    again = trainer(tmp_path / "again", tiny_strata(seed=9, **fields), steps=4, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-2"))
    for one, other in zip(again.model.model.layers, whole.model.model.layers, strict=True):
        bias = one.mlp.gate.e_score_correction_bias
        assert bias.abs().sum() > 0
        assert torch.equal(bias, other.mlp.gate.e_score_correction_bias)


def test_bias_lowers_the_violation_through_the_trainer(tmp_path):
    lines, model = run(tmp_path, 4, router_aux_loss_coef=0.0, router_bias_update_rate=0.05, scoring_func="sigmoid")
    assert lines[-1]["router/max_vio"] < lines[0]["router/max_vio"]
    assert max_violation(torch.tensor(lines[-1]["router/load"])).mean() == pytest.approx(
        lines[-1]["router/max_vio"], abs=1e-3
    )
