"""ZLossCallback in TRL's SFTTrainer: the loss is cross-entropy plus z there too, with its gradient, or it refuses."""

import pytest
import torch
from stock_training import lines, tiny_llama, tiny_strata

from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.losses.trl_seam import TrlHeadSeam, has_fused_head
from hf_pretrain.utils.errors import UserError


trl = pytest.importorskip("trl")

ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 9], [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8]] * 4


def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<eos>": 0, **{f"w{i}": i for i in range(1, 32)}}, unk_token="w1"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")


def sft_trainer(folder, model, callbacks, batch=8, accumulation=1, steps=2, **more):
    from datasets import Dataset

    labels = [[-100, *row[1:]] if len(row) > 5 else row for row in ROWS]
    data = Dataset.from_dict({"input_ids": ROWS, "labels": labels})
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        **{
            "max_steps": steps,
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulation,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "bf16": False,
            "shuffle_dataset": False,
            "train_sampling_strategy": "sequential",
            "disable_tqdm": True,
            **more,
        },
    )
    return trl.SFTTrainer(
        model, arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer(), callbacks=callbacks
    )


@pytest.mark.parametrize("make", [tiny_llama, tiny_strata], ids=["llama", "strata"])
def test_loss_and_gradient_are_those_of_our_loss(tmp_path, make):
    trainer = sft_trainer(tmp_path, make(), [], router_aux_loss_coef=0.0)  # a dense Strata has no router to balance
    model = trainer.model.train()
    assert has_fused_head(model)
    objective = CausalLMObjective(z_loss_coef=0.1)
    seam = TrlHeadSeam(model, objective)
    ids = torch.tensor([ROWS[0], ROWS[0][::-1]])
    labels = ids.clone()
    labels[0, :3] = -100
    output = model(input_ids=ids, labels=labels, fused_lm_head=True)
    (-output.log_probs.sum() / 8).backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    parts = objective.pop_metrics()
    seam.remove()
    model.zero_grad()
    twin = CausalLMObjective(z_loss_coef=0.1)
    twin.attach(model)
    loss = model(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(8)).loss
    loss.backward()
    assert (-output.log_probs.sum() / 8).item() == pytest.approx(loss.item(), rel=1e-5)
    for name, one in model.named_parameters():
        torch.testing.assert_close(found[name], one.grad, rtol=1e-4, atol=1e-6)
    assert parts == pytest.approx(twin.pop_metrics(), rel=1e-5)


def test_it_acts_in_the_trainer_under_accumulation_and_is_undone(tmp_path):
    plain = sft_trainer(tmp_path, tiny_llama(), [])
    plain.train()
    histories = []
    for batch, accumulation in ((8, 1), (2, 4)):
        trainer = sft_trainer(
            tmp_path, tiny_llama(), [ZLossCallback(coef=0.1)], batch, accumulation, eval_strategy="steps", eval_steps=2
        )
        trainer.train()
        history = lines(trainer)
        for line in history:
            assert line["loss"] == pytest.approx(line["ce_loss"] + line["z_loss"], rel=1e-4)
            assert line["lse_max"] > line["lse_mean"]
        histories.append([[line[key] for key in ("ce_loss", "z_loss", "lse_mean", "lse_max")] for line in history])
        during = next(line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(during, rel=1e-6)  # no z in it
        assert not trainer.model.base_model._forward_hooks
    assert histories[0][0][0] == pytest.approx(lines(plain)[0]["loss"], rel=1e-5)
    torch.testing.assert_close(torch.tensor(histories[1]), torch.tensor(histories[0]), rtol=1e-4, atol=1e-6)
    assert histories[0][1][1] < lines(plain)[1]["loss"]


def test_batch_without_a_target_has_a_graph(tmp_path):
    model = sft_trainer(tmp_path, tiny_llama(), []).model.train()
    objective = CausalLMObjective(z_loss_coef=0.1)
    TrlHeadSeam(model, objective)
    ids = torch.tensor([ROWS[0]])
    output = model(input_ids=ids, labels=torch.full_like(ids, -100), fused_lm_head=True)
    output.log_probs.sum().backward()
    assert output.log_probs.sum() == 0
    assert all(one.grad is None or not one.grad.any() for one in model.parameters())


def test_what_cannot_be_right_is_refused_with_the_reason(tmp_path):
    model = tiny_llama()
    with pytest.raises(
        UserError, match="loss_type = 'dft'; ZLossCallback acts in SFTTrainer with loss_type='nll' only"
    ):
        sft_trainer(tmp_path, model, [ZLossCallback()], loss_type="dft").train()
    with pytest.raises(UserError, match="label_smoothing_factor = 0.1"):
        sft_trainer(tmp_path, tiny_llama(), [ZLossCallback()], label_smoothing_factor=0.1).train()
    with pytest.raises(UserError, match="label_smoothing = 0.1; SFTTrainer's fused head has none"):
        sft_trainer(tmp_path, tiny_llama(), [ZLossCallback(label_smoothing=0.1)]).train()
    with pytest.raises(UserError, match="has not given the model the fused head"):
        TrlHeadSeam(tiny_llama(), CausalLMObjective())
    model = sft_trainer(tmp_path, tiny_llama(), []).model
    model.config.logit_scale = 0.5
    with pytest.raises(UserError, match="logit_scale = 0.5 scales its logits"):
        TrlHeadSeam(model, CausalLMObjective())
