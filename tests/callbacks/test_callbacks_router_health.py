"""Router metrics by the worked example of science section 5, and through a Trainer on a tiny Strata."""

import json
import logging

import pytest
import torch
from stock_training import lines, make_trainer, tiny_llama, tiny_strata

from hf_pretrain.callbacks import router_health
from hf_pretrain.callbacks.router_health import RouterHealthCallback, router_metrics
from hf_pretrain.utils.errors import UserError


LOGITS = torch.tensor([[2.0, 1, 0, -1], [2, 0, 1, -1], [1.5, 1, 0, 0], [0, 2, 1, 0]])


@pytest.mark.parametrize(
    ("load", "loss", "max_vio", "entropy", "dead"),
    [([3, 1, 0, 0], 1.700621, 2.0, 0.405639, 2), ([3, 3, 2, 0], 1.322067, 0.5, 0.780639, 1)],
)
def test_worked_example(load, loss, max_vio, entropy, dead):
    metrics = router_metrics(torch.tensor([load]), LOGITS.softmax(-1).sum(0, keepdim=True), torch.tensor([4]))
    assert metrics["load_balance"].item() == pytest.approx(loss, abs=1e-6)
    assert metrics["max_vio"].item() == pytest.approx(max_vio)
    assert metrics["entropy"].item() == pytest.approx(entropy, abs=1e-6)
    assert metrics["dead_experts"].item() == dead


def test_opposite_collapse_of_two_layers_is_seen():
    load = torch.tensor([[8, 0], [0, 8]])
    metrics = router_metrics(load, load.double(), torch.tensor([8, 8]))
    assert metrics["load_balance"].tolist() == [2.0, 2.0]


def test_logs_of_a_tiny_mixture_of_experts(tmp_path):
    callback = RouterHealthCallback()
    model = tiny_strata(num_experts=4, num_experts_per_tok=2, expert_capacity_factor=1.0)
    trainer = make_trainer(tmp_path, model, [callback], steps=6, logging_steps=2)
    trainer.train()
    assert len(lines(trainer)) == 3
    for line in lines(trainer):
        assert len(line["router/load"]) == 2 and len(line["router/load"][0]) == 4
        assert sum(line["router/load"][0]) == pytest.approx(1, abs=1e-4)
        assert 0 < line["router/entropy"] <= 1 and 0 < line["router/token_entropy"] <= 1
        assert line["router/max_vio"] >= 0 and line["router/z"] > 0
        assert line["router/load_balance"] == pytest.approx(1, abs=0.5)
        assert 0 <= line["router/drop_fraction"] < 1
        json.dumps(line)
    assert model.router_statistics() == {}  # reset after each line
    assert any(line["router/drop_fraction"] > 0 for line in lines(trainer))


def test_collapse_alarm_is_raised_once_an_episode(caplog):
    callback = RouterHealthCallback(patience=2)
    collapsed = router_metrics(torch.tensor([[9, 0, 0, 0], [3, 3, 3, 3]]), torch.ones(2, 4), torch.ones(2))
    healthy = router_metrics(torch.tensor([[3, 3, 3, 3], [3, 3, 3, 3]]), torch.ones(2, 4), torch.ones(2))
    with caplog.at_level(logging.WARNING, logger=router_health.__name__):
        for step, health in enumerate([collapsed, healthy, collapsed, collapsed, collapsed]):
            callback._watch(step, health, 4, 1)
    assert len(caplog.records) == 1 and "sparse layer 0 looks collapsed at step 3" in caplog.text
    assert callback.collapsed_layers == [0]
    again = RouterHealthCallback.from_state(json.loads(json.dumps(callback.state())))
    again._watch(9, collapsed, 4, 1)
    assert again.collapsed_layers == [0]


def test_models_without_routers_are_refused(tmp_path):
    for model in (tiny_llama(), tiny_strata()):
        with pytest.raises(UserError, match="keeps no router statistics"):
            make_trainer(tmp_path, model, [RouterHealthCallback()]).train()
    with pytest.raises(UserError, match="patience = 0"):
        RouterHealthCallback(patience=0)
