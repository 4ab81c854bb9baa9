"""ZLossCallback on every family we name, with and without Liger's forward: logs, accumulation, evaluation, undoing."""

import pytest
import torch
import transformers as tf
from stock_training import SIZES, Rows, lines, make_trainer, tiny_strata

from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.losses.liger_seam import has_liger_forward
from hf_pretrain.utils.errors import UserError


COEF = 1e-2
MOE = {"num_experts_per_tok": 2}
FAMILIES = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 8, **MOE},
    "Mixtral": {"num_local_experts": 4, **MOE},
    "Olmo2": {"eos_token_id": 0, "pad_token_id": 0},
    "Gemma": {"head_dim": 8},
    "GPT2": {},
    "Strata": {},
}
# On a CPU only Liger's forward can act, its other kernels need Triton.
FORWARD_ONLY = {"rope": False, "rms_norm": False, "swiglu": False, "geglu": False}


def tiny(family):
    if family == "Strata":
        return tiny_strata()
    torch.manual_seed(0)
    if family == "GPT2":
        config = tf.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        model = tf.GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # the Trainer cannot tell from this name (bugs L3)
        return model
    config = getattr(tf, f"{family}Config")(**{**SIZES, **FAMILIES[family]})
    return getattr(tf, f"{family}ForCausalLM")(config)


def liger_options(liger):
    return {"use_liger_kernel": True, "liger_kernel_config": FORWARD_ONLY} if liger else {}


@pytest.mark.parametrize(
    ("family", "liger"),
    [
        (family, liger)
        for family in FAMILIES
        for liger in (False, True)
        if not (liger and family in ("GPT2", "Strata"))
    ],
)
def test_family(tmp_path, family, liger):
    if liger:
        pytest.importorskip("liger_kernel")
    plain = make_trainer(tmp_path, tiny(family), [], steps=1)
    plain.train()
    histories = []
    for batch, accumulation in ((8, 1), (2, 4)):
        trainer = make_trainer(
            tmp_path,
            tiny(family),
            [ZLossCallback(coef=COEF)],
            steps=2,
            batch=batch,
            accumulation=accumulation,
            eval_rows=Rows(4),
            eval_strategy="steps",
            eval_steps=2,
            **liger_options(liger),
        )
        trainer.train()
        assert has_liger_forward(trainer.model) is liger
        for line in lines(trainer):
            assert line["loss"] == pytest.approx(line["ce_loss"] + line["z_loss"], rel=1e-4)
            assert line["lse_max"] > line["lse_mean"] > 0
            # the mean of squares is at least the square of the mean
            assert line["z_loss"] >= COEF * line["lse_mean"] ** 2 * (1 - 1e-6)
        histories.append(
            [[line[key] for key in ("ce_loss", "z_loss", "lse_mean", "lse_max")] for line in lines(trainer)]
        )
        during = next(line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line)
        assert "_loss_function" not in vars(trainer.model)
        assert not trainer.model._forward_hooks and not trainer.model._forward_pre_hooks
        trainer.args.use_liger_kernel = False  # else the Trainer asks Liger's kernel for the evaluation too
        assert trainer.evaluate()["eval_loss"] == pytest.approx(during, rel=1e-6)
    assert histories[0][0][0] == pytest.approx(lines(plain)[0]["loss"], rel=1e-5)
    torch.testing.assert_close(torch.tensor(histories[1]), torch.tensor(histories[0]), rtol=1e-4, atol=1e-6)


def test_liger_forward_outside_a_run_of_ours_is_liger_s_own(tmp_path):
    """The route is open only while the model with the callback runs: another one gets what Liger does."""
    pytest.importorskip("liger_kernel")
    trainer = make_trainer(tmp_path, tiny("Llama"), [ZLossCallback(coef=COEF)], steps=1, **liger_options(True))
    trainer.train()
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(RuntimeError, match="driver"):  # Triton on a CPU
        trainer.model.train()(input_ids=ids, labels=ids)


def test_loss_options_for_the_forward_are_refused(tmp_path):
    pytest.importorskip("liger_kernel")
    trainer = make_trainer(tmp_path, tiny("Llama"), [], steps=1, **liger_options(True))
    callback = ZLossCallback(coef=COEF)
    tf.integrations.liger.apply_liger_kernel(trainer.model, FORWARD_ONLY)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(UserError, match=r"lse_square_scale = 0.1; it cannot be passed"):
        trainer.model.train()(input_ids=ids, labels=ids, lse_square_scale=0.1)
    callback.on_train_end(trainer.args, trainer.state, trainer.control)


def test_strata_with_use_liger_kernel_says_why_not_on_a_cpu(tmp_path, monkeypatch):
    """The callback enters Strata in Liger's table; without it the Trainer would patch nothing and say nothing."""
    pytest.importorskip("liger_kernel")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    trainer = make_trainer(tmp_path, tiny("Strata"), [ZLossCallback(coef=COEF)], steps=1, use_liger_kernel=True)
    with pytest.raises(UserError, match="use_liger_kernel = True; the model is on a CPU"):
        trainer.train()
