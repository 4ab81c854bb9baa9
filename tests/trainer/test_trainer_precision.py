"""Which number has which type, and what weights in bf16 lose."""

import types

import pytest
import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from tiny_training import arguments, tiny_llama, tiny_strata, trainer

from hf_pretrain.callbacks.effect_checks import EffectChecksCallback
from hf_pretrain.trainer.precision import (
    PrecisionCallback,
    audit_line,
    check_precision,
    lost_updates,
    precision_audit,
    run_precision,
    sum_in_fp32,
    to_pure_bf16,
)
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, 1.0), (torch.float32, 0.9)])
def test_ones_in_bf16_never_move(dtype, expected):
    # N1: four ones, AdamW at 1e-3, gradient 1, 100 steps.
    weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.0)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert weight.tolist() == pytest.approx([expected] * 4, abs=1e-4)
    assert lost_updates(torch.ones(4), torch.full((4,), -1e-3), dtype).all() == (dtype == torch.bfloat16)


def test_lost_updates_are_those_below_half_a_unit():
    weights, updates = torch.tensor([1.0, 1.0, 0.01, 1.0, 0.0]), torch.tensor([0.003, 0.005, 1e-3, 0.0, 1e-6])
    assert lost_updates(weights, updates).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("make", [tiny_llama, tiny_strata])
def test_mixed_precision_has_fp32_master_weights(tmp_path, make):
    run = trainer(tmp_path, make(), bf16=True, steps=2)
    run.train()
    audit = run.find_callback(PrecisionCallback).audit
    count = sum(one.numel() for one in run.model.parameters())
    assert audit["compute"] == "bfloat16" and audit["loss"] == audit["reductions"] == "float32"
    assert audit["weights"] == audit["gradients"] == {"float32": count}
    assert audit["moments"] == {"float32": 2 * count}
    assert ("router" in audit) == (make is tiny_strata)
    assert "lost_updates" not in audit


def test_the_audit_is_logged_once(tmp_path, caplog):
    with caplog.at_level("INFO", logger="hf_pretrain"):
        trainer(tmp_path, steps=3).train()
    lines = [one.message for one in caplog.records if one.message.startswith("Precision:")]
    assert lines == [
        "Precision: products float32, weights float32, gradients float32, moments float32, loss float32, reductions "
        "float32"
    ]


def test_pure_bf16_has_to_be_asked_for_and_shows_what_it_loses(tmp_path, caplog):
    # Trained long enough for weights of ordinary size: an update of 1e-3 is lost on every weight above 0.5.
    model = tiny_strata()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(50)
    given = [PrecisionCallback(pure_bf16=True)]
    run = trainer(tmp_path, to_pure_bf16(model), steps=2, callbacks=given, warmup_fraction=0.0, learning_rate=1e-3)
    run.train()
    audit = run.find_callback(PrecisionCallback).audit
    assert run.find_callback(EffectChecksCallback).found["master_weights"] == "not asked for"
    assert audit["weights"]["bfloat16"] > audit["weights"]["float32"]
    assert audit["moments"]["bfloat16"] == 2 * audit["weights"]["bfloat16"]
    assert set(audit["router"]) == {"float32"}  # routers are kept in fp32
    lost = audit["lost_updates"]
    assert 0.2 < lost["at_peak_rate"] < 1.0
    assert lost["first_update"] == pytest.approx(lost["at_peak_rate"], abs=0.2)
    assert f"{100 * lost['first_update']:.0f}% did not move at the first update" in caplog.text


def test_what_was_not_asked_for_is_refused(tmp_path):
    args = arguments(tmp_path)
    with pytest.raises(UserError, match="weights are bfloat16.*ask for it with pure_bf16"):
        check_precision(tiny_llama().to(torch.bfloat16), args)
    with pytest.raises(UserError, match="weights are float16; gradients of fp16 weights"):
        check_precision(tiny_llama().to(torch.float16), args, pure_bf16=True)
    with pytest.raises(UserError, match="pure_bf16 = True; the model's weights are fp32"):
        check_precision(tiny_llama(), args, pure_bf16=True)
    with pytest.raises(UserError, match="fp16 = True; fp16 with its loss scaling needs an accelerator"):
        trainer(tmp_path, fp16=True)


def test_sums_over_processes_are_fp32_under_fsdp():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.reduce_dtype == torch.bfloat16  # accelerate's default
    accelerator = types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin))
    assert sum_in_fp32(accelerator)
    assert plugin.mixed_precision_policy.reduce_dtype == torch.float32
    assert plugin.mixed_precision_policy.param_dtype == torch.bfloat16
    assert not sum_in_fp32(accelerator)
    assert not sum_in_fp32(types.SimpleNamespace(state=types.SimpleNamespace()))


def test_an_audit_of_a_model_alone_says_what_is_known(tmp_path):
    audit = precision_audit(tiny_strata())
    assert set(audit) == {"compute", "weights", "router"}
    assert audit_line(audit) == "products float32, weights float32, router float32"
    assert run_precision(arguments(tmp_path, bf16=True)) == torch.bfloat16
