"""Router metrics by the worked example of science section 5, and through a Trainer on a tiny Strata."""

import json
import logging

import pytest
import torch
from stock_training import lines, make_trainer, tiny_llama, tiny_strata

from hf_pretrain.callbacks import router_health
from hf_pretrain.callbacks.router_health import RouterHealthCallback, looks_collapsed, router_metrics
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
        for name in ("max_vio", "entropy"):
            layers = line[f"router/layer_{name}"]
            assert len(layers) == 2 and sum(layers) / 2 == pytest.approx(line[f"router/{name}"], abs=1e-4)
        assert sum(line["router/layer_dead_experts"]) == line["router/dead_experts"]
        json.dumps(line)
    assert model.router_statistics() == {}  # reset after each line
    assert any(line["router/drop_fraction"] > 0 for line in lines(trainer))


class OnDevice(torch.Tensor):
    """A tensor that notes whatever makes the host wait for it; what comes to the CPU is a plain tensor."""

    syncs: list[str] = []
    WAITS = ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "__repr__")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function.__name__ in cls.WAITS or (function.__name__ == "to" and "cpu" in map(str, args)):
            cls.syncs.append(function.__name__)
            return result.as_subclass(torch.Tensor) if isinstance(result, torch.Tensor) else result
        return result


def test_one_device_sync_a_log_line_and_none_between(tmp_path, monkeypatch):
    model = tiny_strata(num_experts=4, num_experts_per_tok=2)
    plain = model.router_statistics
    monkeypatch.setattr(OnDevice, "syncs", [])
    monkeypatch.setattr(
        model, "router_statistics", lambda: {name: one.as_subclass(OnDevice) for name, one in plain().items()}
    )
    trainer = make_trainer(tmp_path, model, [RouterHealthCallback()], steps=6, logging_steps=2)
    trainer.train()
    assert len(lines(trainer)) == 3 and "router/load" in lines(trainer)[0]
    assert OnDevice.syncs == ["cpu"] * 3
    assert float(torch.ones(1).as_subclass(OnDevice)) == 1.0 and OnDevice.syncs[3:]  # the counter does count


@pytest.mark.parametrize(
    ("load", "k", "collapsed"),
    [
        ([8, 8, 8, 8, 8, 8, 8, 8], 2, False),
        ([32, 32, 0, 0, 0, 0, 0, 0], 2, True),  # entropy 1/3, and six dead
        ([26, 6, 6, 6, 5, 5, 5, 5], 2, True),  # max_vio 2.25 above 8 / 4
        ([26, 6, 6, 6, 5, 5, 5, 5], 1, False),  # but below 8 / 2
        ([10, 9, 9, 9, 9, 9, 9, 0], 2, True),  # one of eight is more than a tenth
    ],
)
def test_what_counts_as_collapse(load, k, collapsed):
    health = router_metrics(torch.tensor([load]), torch.ones(1, 8), torch.tensor([8]))
    assert looks_collapsed(health, 8, k).tolist() == [collapsed]


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
