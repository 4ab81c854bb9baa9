import json

import pytest
import torch
from tiny_training import (
    BATCH,
    LENGTH,
    arguments,
    equal_weights,
    losses,
    memory_source,
    tiny_llama,
    tiny_mixture,
    tiny_strata,
    trainer,
    weights,
)
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.errors import UserError


class Rows(Dataset):
    """Rows of ids and labels as they are."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids, labels = self.rows[index]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
            "position_ids": torch.arange(len(ids)),
        }


def bug_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )


SECOND_HALF = ([1, 2, 3, 4, 5, 6, 7, 8], [-100] * 6 + [7, 8])
ALL = ([9, 10, 11, 12, 13, 14, 15, 16], [9, 10, 11, 12, 13, 14, 15, 16])


@pytest.mark.parametrize("batch", [1, 2])
def test_held_out_loss_is_a_mean_over_tokens(tmp_path, batch):
    # L7: 2 and 7 targets; a mean over batches gives 3.477824 for batches of one.
    args = arguments(tmp_path, seq_length=8, train_tokens=64, per_device_eval_batch_size=batch)
    run = PretrainTrainer(bug_llama(), args, train_dataset=None, eval_dataset=Rows([SECOND_HALF, ALL]))
    metrics = run.evaluate()
    assert metrics["eval_loss"] == pytest.approx(3.453379, abs=2e-6)
    assert metrics["eval_tokens"] == 9


@pytest.mark.parametrize(("batch", "accumulation"), [(2, 1), (1, 2)])
def test_loss_and_gradient_of_a_step_are_those_of_its_tokens(tmp_path, batch, accumulation):
    # L1: labels on 2 and on 8 positions.
    rows = Rows([SECOND_HALF, ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8])])
    args = arguments(
        tmp_path,
        seq_length=8,
        train_tokens=16,
        global_batch_size=2,
        per_device_train_batch_size=batch,
        z_loss_coef=0.0,
        spike_action="off",
    )
    assert args.gradient_accumulation_steps == accumulation
    run = PretrainTrainer(bug_llama(), args, train_dataset=rows)
    run.train()
    assert losses(run)[0] == pytest.approx(3.497784, abs=2e-6)
    assert run.state.log_history[0]["grad_norm"] == pytest.approx(2.327179, abs=1e-5)


def test_first_update_has_a_rate_and_the_last_one_the_floor(tmp_path):
    # W1, W2: warm-up 2, decay 4 of 10; the stock schedule wastes the first step and stops above the floor.
    run = trainer(tmp_path, steps=10, warmup_steps=2, decay_fraction=0.4, learning_rate=1.0, optim="sgd")
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0.0])
    with pytest.raises(UserError, match="must not overlap"):
        trainer(tmp_path, steps=10, warmup_steps=5, decay_fraction=0.8).train()


def test_a_step_without_labels_changes_nothing(tmp_path, caplog):
    # L8: documents of one token leave a window without labels; Adam would still move by momentum and decay.
    ones = TokenSource.from_arrays("ones", [3] * 4000, list(range(1, 4001)), 64, 0)
    schedule = MixtureSchedule.from_weights({"a": 1.0}, 4 * BATCH).with_phase("ones", 2 * BATCH, {"ones": 1.0})
    dataset = MixtureDataset([memory_source("a"), ones], schedule, LENGTH, max_epochs=100)
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
            moments = [value["exp_avg"].clone() for value in optimizer.state.values()]
            counts = {float(value["step"]) for value in optimizer.state.values()}
            seen.append(([parameter.detach().clone() for parameter in model.parameters()], moments, counts))

    run = trainer(tmp_path, steps=4, train_dataset=dataset, callbacks=[Watch()])
    run.train()
    before, after = seen[1], seen[3]
    assert all(torch.equal(a, b) for a, b in zip(before[0] + before[1], after[0] + after[1], strict=True))
    assert before[2] == after[2] == {2.0}
    assert run.num_empty_steps == 2
    assert losses(run)[2:] == [0.0, 0.0]
    assert "Step 3 holds no label (1 such steps so far)" in caplog.text
    with pytest.raises(UserError, match="2 optimizer steps in a row up to step 4 hold no label"):
        trainer(tmp_path, steps=4, train_dataset=dataset, empty_step_limit=2).train()


def test_log_and_data_order_are_on_disk(tmp_path):
    run = trainer(
        tmp_path / "checkpoints", record_dir=str(tmp_path), steps=4, anneal_weights={"b": 1.0}, decay_fraction=0.5
    )
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4]
    assert [line["data/phase"] for line in lines[:4]] == ["stable", "stable", "anneal", "anneal"]
    assert lines[3]["data/b/tokens"] + lines[3]["data/a/tokens"] == 4 * BATCH * LENGTH
    assert [line["epoch"] for line in lines[:4]] == [0.25, 0.5, 0.75, 1.0]
    order = DataOrder.read(tmp_path)
    assert order.schedule == run.train_dataset.schedule
    assert order.samples_of_step(3) == list(range(2 * BATCH, 3 * BATCH))


def test_a_resumed_run_must_be_the_same_run(tmp_path):
    # R8, W4: learning rate and horizon of the checkpoint and of the new arguments must not be mixed silently.
    trainer(tmp_path, steps=4, save_strategy="steps", save_steps=2).train()
    checkpoint = str(tmp_path / "checkpoint-2")
    with pytest.raises(UserError, match=r"learning_rate = 0.1; .* was trained with 0.001: restore it"):
        trainer(tmp_path, steps=4, learning_rate=0.1).train(checkpoint)
    with pytest.raises(UserError, match="max_steps = 1; .* has made 2 already"):
        trainer(tmp_path, steps=1).train(checkpoint)
    changed = trainer(tmp_path, steps=4, learning_rate=0.1, decay_fraction=0.0, resume_changes=["learning_rate"])
    with pytest.raises(UserError, match="decay_fraction = 0.0"):
        changed.train(checkpoint)
    other = tiny_mixture(4, {"a": 0.5, "b": 0.5})
    with pytest.raises(UserError, match="the mixture changed for samples that were already read"):
        trainer(tmp_path, steps=4, train_dataset=other).train(checkpoint)


def test_resume_at_the_end_trains_nothing_and_says_so(tmp_path):
    first = trainer(tmp_path, steps=2, save_strategy="steps")
    first.train()
    again = trainer(tmp_path, steps=2, save_strategy="steps")
    assert again.train(resume_from_checkpoint=True).global_step == 2
    assert equal_weights(weights(again), weights(first))


def test_log_of_an_interrupted_run_is_cut_to_the_checkpoint(tmp_path):
    trainer(tmp_path, steps=6, save_strategy="steps", save_steps=4).train()
    before = (tmp_path / "log.jsonl").read_text().splitlines()
    trainer(tmp_path, steps=6, save_strategy="steps", save_steps=4).train(str(tmp_path / "checkpoint-4"))
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6]
    assert len(before) == len(steps)


def test_router_bias_moves_once_a_step(tmp_path):
    model = tiny_strata(router_bias_update_rate=0.01)
    run = trainer(tmp_path, model, steps=3, per_device_train_batch_size=2)
    run.train()
    bias = model.model.layers[0].mlp.gate.e_score_correction_bias
    # Each step moves every expert by the rate at most, whatever the four micro-batches of a step.
    moved = (bias / 0.01).round(decimals=4).abs()
    assert 0 < moved.max() <= 3


def test_a_skipped_update_leaves_the_router_bias_and_forgets_its_batch(tmp_path):
    model = tiny_strata(router_bias_update_rate=0.01)
    biases = []

    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            biases.append(model.model.layers[0].mlp.gate.e_score_correction_bias.clone())
            if state.global_step == 1:
                # Not finite in the second update alone: the hook removes itself.
                weight = model.lm_head.weight
                handle = weight.register_hook(lambda gradient: (handle.remove(), gradient * float("nan"))[1])

    trainer(tmp_path, model, steps=3, spike_action="skip_update", callbacks=[Poison()]).train()
    assert not torch.equal(biases[0], biases[1])
    assert torch.equal(biases[1], biases[2])
    final = model.model.layers[0].mlp.gate.e_score_correction_bias
    assert 0 < (final - biases[2]).abs().max() <= 0.01 + 1e-6


def test_weight_decay_spares_norms_and_embeddings(tmp_path):
    run = trainer(tmp_path, tiny_strata())
    names = run.get_decay_parameter_names(run.model)
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert not any("norm" in name or "embed" in name for name in names)


def test_half_precision_weights_are_refused():
    with pytest.raises(UserError, match="weights are bfloat16.*dtype=torch.float32"):
        trainer("unused", tiny_llama().to(torch.bfloat16))


def test_phases_that_do_not_fit_are_errors_at_once():
    with pytest.raises(UserError, match="num_warmup_steps = 50; the run has 6 updates.*warmup_steps"):
        arguments("unused", steps=6, warmup_steps=50)


def test_disagreements_are_errors_before_the_first_step(tmp_path):
    with pytest.raises(UserError, match="windows have 32 tokens"):
        trainer(tmp_path, seq_length=16)
    with pytest.raises(UserError, match="48 samples are needed, the schedule has 16"):
        trainer(tmp_path, train_dataset=tiny_mixture(2))
    with pytest.raises(UserError, match="only 'sequential' keeps"):
        trainer(tmp_path, train_sampling_strategy="random")
    with pytest.raises(UserError, match="ignore_data_skip = False; with a mixture it must be True"):
        trainer(tmp_path, ignore_data_skip=False)
    args = arguments(tmp_path)
    args.per_device_train_batch_size = 2
    with pytest.raises(UserError, match="global_batch_size = 8; a step now has 2 sequences"):
        PretrainTrainer(tiny_llama(), args, train_dataset=tiny_mixture(6))
    with pytest.raises(UserError, match="takes a PretrainConfig"):
        PretrainTrainer(tiny_llama(), TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
