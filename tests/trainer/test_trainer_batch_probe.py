"""Reading a batch again gives the trainer's numbers and leaves the model bit by bit as it was."""

import copy

import pytest
import torch
from tiny_training import tiny_llama, tiny_mixture, tiny_strata, trainer

from hf_pretrain.trainer.batch_probe import part_of, read_batch


def rows(count=3):
    mixture = tiny_mixture(1)
    return [mixture[index] for index in range(count)]


def together(batch):
    return {name: torch.stack([row[name] for row in batch]) for name in ("input_ids", "labels", "position_ids")}


@pytest.mark.parametrize("make", [tiny_llama, lambda: tiny_strata(router_aux_loss_coef=0.0, router_z_loss_coef=0.0)])
def test_loss_and_gradient_are_those_of_training(make):
    model, batch = make(), rows()
    reading = read_batch(model, batch)
    loss = model(**together(batch), use_cache=False).loss
    loss.backward()
    norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
    assert reading.loss == pytest.approx(loss.item(), rel=1e-5)
    assert reading.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert set(reading.layer_grad_norms) >= {"embedding", "layer 0", "norm"}


def test_nothing_of_the_model_changes():
    model = tiny_strata(router_bias_update_rate=0.01, attention_dropout=0.3, router_noise="gumbel")
    batch = rows()
    model.train()
    model(**together(batch)).loss.backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [one.grad.clone() for one in model.parameters()]
    statistics = copy.deepcopy(model.router_statistics())
    losses = dict(model.router_losses)
    state = torch.get_rng_state()
    read_batch(model, batch)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(old, one.grad) for old, one in zip(gradients, model.parameters(), strict=True))
    assert all(torch.equal(statistics[name], value) for name, value in model.router_statistics().items())
    assert losses.keys() == model.router_losses.keys()
    assert all(torch.equal(losses[name], model.router_losses[name]) for name in losses)
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in model.modules())


def test_routers_are_read():
    reading = read_batch(tiny_strata(), rows())
    assert len(reading.routers) == 2
    assert sum(reading.routers[0]["load"]) == pytest.approx(1.0)
    assert 0 < reading.routers[0]["entropy"] <= 1 and reading.routers[0]["max_vio"] >= 0
    assert read_batch(tiny_llama(), rows()).routers == []


def test_precision_is_the_one_asked_for():
    model, batch = tiny_llama(), rows()
    full = read_batch(model, batch, gradients=False)
    half = read_batch(model, batch, torch.bfloat16, gradients=False)
    assert half.loss != full.loss and half.loss == pytest.approx(full.loss, abs=0.05)
    assert full.grad_norm is None
    narrow = tiny_llama().to(torch.bfloat16)
    wide = copy.deepcopy(narrow).float()
    assert read_batch(narrow, batch).loss == pytest.approx(read_batch(wide, batch).loss, abs=1e-6)
    assert read_batch(narrow, batch).grad_norm == pytest.approx(read_batch(wide, batch).grad_norm, rel=1e-2)


def test_the_autocast_that_accelerate_wraps_around_is_passed_by(tmp_path):
    run = trainer(tmp_path, bf16=True, steps=1)
    run.train()
    model, batch = run.accelerator.unwrap_model(run.model), rows()
    plain = copy.deepcopy(tiny_llama())
    plain.load_state_dict(model.state_dict())
    assert read_batch(model, batch, gradients=False).loss == read_batch(plain, batch, gradients=False).loss


def test_parts_have_names():
    assert part_of("model.layers.3.mlp.gate.weight") == "layer 3"
    assert part_of("model.embed_tokens.weight") == "embedding"
    assert (part_of("lm_head.weight"), part_of("model.norm.weight"), part_of("odd")) == ("head", "norm", "odd")


def test_a_value_that_is_not_finite_is_seen():
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = torch.nan
    batch = rows(1)
    batch[0]["input_ids"][3] = 5
    reading = read_batch(model, batch)
    assert reading.loss != reading.loss and reading.grad_norm != reading.grad_norm
