import pytest
import torch
from tiny_training import BATCH, LENGTH, tiny_llama, tiny_mixture, trainer
from torch.optim.lr_scheduler import LambdaLR, StepLR
from transformers import Trainer, TrainingArguments

from hf_pretrain.callbacks.annealing_mix import AnnealingMixCallback, decay_start_step
from hf_pretrain.callbacks.data_ledger import DataLedgerCallback
from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.utils.errors import UserError


def stock_trainer(folder, callback, steps=8, **options):
    defaults = {
        "max_steps": steps,
        "per_device_train_batch_size": BATCH // 2,
        "gradient_accumulation_steps": 2,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 4},
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "remove_unused_columns": False,
    }
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    return Trainer(
        tiny_llama(),
        args,
        train_dataset=tiny_mixture(steps),
        data_collator=PretrainDataCollator(keep_provenance=False),
        callbacks=[callback],
    )


def factors(values):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return LambdaLR(optimizer, lambda step: values[min(step, len(values) - 1)])


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ([0.5, 1, 1, 1, 0.5, 0.0], 4),
        ([0.5, 1.0, 0.9, 0.8, 0.7, 0.6], 2),
        ([0.8, 0.6, 0.4, 0.2, 0.1, 0.0], 0),
        ([1, 1, 1, 1, 1, 0.0], 5),
    ],
)
def test_start_of_the_decay_is_read_from_the_schedule(values, start):
    assert decay_start_step(factors(values), 6) == start


def test_a_schedule_without_decay_is_an_error():
    with pytest.raises(UserError, match="never decays within max_steps = 3"):
        decay_start_step(factors([1.0]), 3)
    with pytest.raises(UserError, match="cannot be found in a StepLR"):
        decay_start_step(StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1), 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_anneal_begins_with_the_decay_in_a_stock_trainer(tmp_path, workers):
    callback = AnnealingMixCallback({"b": 1.0})
    run = stock_trainer(tmp_path, callback, dataloader_num_workers=workers)
    run.train()
    logs = [entry for entry in run.state.log_history if "loss" in entry]
    rates = [entry["learning_rate"] for entry in logs]
    first_below = next(index for index, rate in enumerate(rates) if rate < max(rates))
    phases = [entry["data/phase"] for entry in logs]
    assert phases == ["stable"] * first_below + ["anneal"] * (8 - first_below)
    assert callback.start_step == first_below
    # From there on every token is of the new mix, and none was before.
    tokens = [entry["data/b/tokens"] for entry in logs]
    assert tokens[-1] - tokens[first_below - 1] == (8 - first_below) * BATCH * LENGTH
    assert abs(logs[first_below - 1]["data/b/share"] - 0.3) < 3 / (first_below * BATCH)
    assert logs[-1]["data/a/epochs"] == logs[first_below - 1]["data/a/epochs"]


def test_all_workers_see_the_annealed_samples(tmp_path):
    seen = []

    class Watch(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append(inputs["input_ids"].clone())
            return super().training_step(model, inputs, num_items_in_batch)

    run = stock_trainer(tmp_path, AnnealingMixCallback({"b": 1.0}, start=0.5), dataloader_num_workers=1)
    run.__class__ = Watch
    run.train()
    expected = torch.stack([run.train_dataset[index]["input_ids"] for index in range(8 * BATCH)])
    assert torch.equal(torch.cat(seen), expected)
    assert {run.train_dataset[index]["source_index"] for index in range(4 * BATCH, 8 * BATCH)} == {1}


@pytest.mark.parametrize("step", [3, 4])
def test_phase_is_the_same_after_a_resume(tmp_path, step):
    # X5: a resume at the step before the boundary and at the boundary.
    def run():
        return trainer(
            tmp_path,
            steps=8,
            anneal_weights={"b": 1.0},
            decay_fraction=0.5,
            save_strategy="steps",
            save_steps=1,
            save_total_limit=8,
        )

    first = run()
    first.train()
    again = run()
    again.train(str(tmp_path / f"checkpoint-{step}"))
    phases = {entry["step"]: entry["data/phase"] for entry in again.state.log_history if "loss" in entry}
    assert phases == {number: "stable" if number <= 4 else "anneal" for number in range(1, 9)}
    assert again.train_dataset.schedule == first.train_dataset.schedule


def test_training_twice_keeps_the_schedule(tmp_path):
    run = trainer(tmp_path, steps=4, anneal_weights={"b": 1.0}, decay_fraction=0.5, anneal_ramp_fraction=0.5)
    run.train()
    schedule = run.train_dataset.schedule
    run.train()
    assert run.train_dataset.schedule == schedule
    assert schedule.phases[-1].ramp == BATCH


def test_fixed_starts():
    assert AnnealingMixCallback({"b": 1.0}, start=3).start == 3
    for start in ("later", -1, 1.5, True):
        with pytest.raises(UserError, match=f"start = {start!r}; allowed are 'decay'"):
            AnnealingMixCallback({"b": 1.0}, start=start)


def test_wrong_trainers_are_told(tmp_path):
    with pytest.raises(UserError, match="reads the mixture in random order"):
        stock_trainer(tmp_path, AnnealingMixCallback({"b": 1.0}), train_sampling_strategy="random").train()
    with pytest.raises(UserError, match="mixture: Unknown source 'c'"):
        stock_trainer(tmp_path, AnnealingMixCallback({"c": 1.0})).train()
    run = stock_trainer(tmp_path, DataLedgerCallback())
    run.train_dataset = [run.train_dataset[0]] * 64
    with pytest.raises(UserError, match="the train_dataset is a list"):
        run.train()


def test_ledger_tells_planned_from_consumed_and_unique_from_repeated(tmp_path):
    run = trainer(tmp_path, steps=4)
    run.train()
    logs = [entry for entry in run.state.log_history if "loss" in entry]
    dataset = run.train_dataset
    for number, entry in enumerate(logs, 1):
        read = [dataset.locate(index) for index in range(number * BATCH)]
        for source, name in enumerate("ab"):
            windows = [window for found, _, window in read if found == source]
            assert entry[f"data/{name}/tokens"] == len(windows) * LENGTH
            assert entry[f"data/{name}/unique_tokens"] == len(set(windows)) * LENGTH
            assert entry[f"data/{name}/planned_tokens"] == logs[-1][f"data/{name}/tokens"]
