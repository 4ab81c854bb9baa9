"""Faults of loss normalisation known from elsewhere (bugs L2 to L5, L8), through whole Trainers."""

import pytest
import torch
from test_trainer_loop import ALL, SECOND_HALF, Rows, bug_llama
from tiny_training import arguments, losses
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.errors import UserError


# Rows ids 1..8 all labelled and ids 9..16 labelled on the last two: 7 + 2 targets.
FIRST = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8])
LAST_TWO = ([9, 10, 11, 12, 13, 14, 15, 16], [-100] * 6 + [15, 16])
RIGHT, RIGHT_SMOOTH = 3.47465, 3.47406


class WithoutKeywords(LlamaForCausalLM):
    """A forward as many are written: no `**kwargs`, so the Trainer cannot hand it the number of targets."""

    def forward(self, input_ids, labels=None, position_ids=None):
        return super().forward(input_ids=input_ids, labels=labels, position_ids=position_ids)


class MyDenseForCausalLM(LlamaForCausalLM):
    """A name that is in no list of transformers (L4)."""


class MyLM(LlamaForCausalLM):
    """A name without ForCausalLM (L3)."""


def make(kind):
    config = bug_llama().config
    torch.manual_seed(0)
    return kind(config)


def stock(folder, model, callbacks, rows, batch=1, accumulation=1, **more):
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        **{"num_train_epochs": 1, **more},
    )
    return Trainer(model, args, train_dataset=Rows(rows), callbacks=callbacks)


def first_loss(run):
    return next(line["loss"] for line in run.state.log_history if "loss" in line)


def pretrain(folder, model, batch, **more):
    args = arguments(
        folder,
        seq_length=8,
        train_tokens=16,
        global_batch_size=2,
        per_device_train_batch_size=batch,
        z_loss_coef=0.0,
        spike_action="off",
        **more,
    )
    return PretrainTrainer(model, args, train_dataset=Rows([FIRST, LAST_TWO]))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", [MyLM, MyDenseForCausalLM], ids=["MyLM", "MyDense"])
def test_l3_any_class_name_counts_shifted_targets(tmp_path, kind, batch):
    """Bugs L3: 9 targets under any class name, 3.47465; the stock Trainer divides `MyLM`'s by 10."""
    run = pretrain(tmp_path, make(kind), batch)
    run.train()
    assert losses(run)[0] == pytest.approx(RIGHT, abs=5e-5)


def test_l2_a_forward_without_keywords_is_an_error(tmp_path):
    """Bugs L2: two micro-batches would be a mean of means, 3.45432, and say nothing; here it is refused."""
    with pytest.raises(UserError, match=r"WithoutKeywords.forward takes no \*\*kwargs"):
        pretrain(tmp_path, make(WithoutKeywords), 1)
    with pytest.raises(UserError, match=r"WithoutKeywords.forward takes no \*\*kwargs"):
        stock(tmp_path, make(WithoutKeywords), [ZLossCallback(0.0)], [FIRST, LAST_TWO], accumulation=2)
    whole = stock(tmp_path, make(WithoutKeywords), [ZLossCallback(0.0)], [FIRST, LAST_TWO], batch=2)
    whole.train()  # one micro-batch on one process needs no count
    assert first_loss(whole) == pytest.approx(RIGHT, abs=5e-5)


def test_l4_smoothing_shifts_the_labels_of_any_class(tmp_path):
    """Bugs L4: 3.47406 for a class of ours; the Trainer's own smoother gives 3.86474, and is refused with z-loss."""
    callback = ZLossCallback(0.0, label_smoothing=0.1)
    run = stock(tmp_path, make(MyDenseForCausalLM), [callback], [FIRST, LAST_TWO], batch=2)
    run.train()
    assert first_loss(run) == pytest.approx(RIGHT_SMOOTH, abs=5e-5)
    run = stock(
        tmp_path, make(MyDenseForCausalLM), [ZLossCallback()], [FIRST, LAST_TWO], batch=2, label_smoothing_factor=0.1
    )
    with pytest.raises(UserError, match="label_smoothing_factor = 0.1"):
        run.train()


def test_l5_the_last_short_window_is_a_step_of_its_own(tmp_path):
    """Bugs L5: 5 rows, batch 1, accumulation 2: 3 updates, and the third gradient is that of row 5 alone."""
    rows = [FIRST, LAST_TWO, SECOND_HALF, ALL, FIRST]
    seen = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.append([one.grad.clone() for one in model.parameters()])

    callbacks = [ZLossCallback(1e-2), Watch()]
    run = stock(tmp_path, make(LlamaForCausalLM), callbacks, rows, accumulation=2, learning_rate=0.0, max_grad_norm=0)
    run.train()
    assert run.state.global_step == len(seen) == 3
    alone = stock(tmp_path, make(LlamaForCausalLM), callbacks, rows[4:], learning_rate=0.0, max_grad_norm=0)
    alone.train()
    torch.testing.assert_close(seen[2], seen[3], rtol=1e-5, atol=1e-7)
    lines = [line["ce_loss"] for line in run.state.log_history if "ce_loss" in line]
    assert lines[2] == pytest.approx(alone.state.log_history[0]["ce_loss"], rel=1e-6)


def test_windows_without_a_target_leave_a_stock_trainer_s_weights_alone(tmp_path):
    """Bugs L8 in a stock Trainer: AdamW with momentum and decay would move the weights by nothing but the past."""
    empty = (FIRST[0], [-100] * 8)
    weights = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
            moments = [value["exp_avg"].clone() for value in optimizer.state.values()]
            weights.append([one.detach().clone() for one in model.parameters()] + moments)

    callback = ZLossCallback(1e-2)
    run = stock(
        tmp_path,
        make(LlamaForCausalLM),
        [callback, Watch()],
        [FIRST, empty, empty, LAST_TWO],
        batch=1,
        accumulation=1,
        learning_rate=1e-2,
        weight_decay=0.1,
    )
    run.train()
    assert callback.num_empty_steps == 2
    for other in (1, 2):
        assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[other], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[2], weights[3], strict=True))
    assert [line["loss"] for line in run.state.log_history if "loss" in line][1:3] == [0.0, 0.0]
