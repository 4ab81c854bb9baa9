"""Which samples a step holds: the same after resumes, other cuts of the batch and samples left out."""

import pytest
from tiny_training import BATCH, equal_weights, tiny_mixture, trainer, weights

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.order import DataOrder
from hf_pretrain.trainer.checkpoint import read_manifest
from hf_pretrain.utils.errors import UserError


class Recorder:
    """The sample numbers of each step, as the collator delivers them."""

    def __init__(self, run):
        self.steps = {}
        run.data_collator = _WithNumbers()
        original = run.get_batch_samples

        def record(*arguments, **options):
            batches, count = original(*arguments, **options)
            samples = [index for batch in batches for index in batch.pop("numbers")]
            if samples:
                self.steps[run.state.global_step + 1] = samples
            return batches, count

        run.get_batch_samples = record


class _WithNumbers(PretrainDataCollator):
    def __call__(self, features):
        return {**super().__call__(features), "numbers": [feature["sample_index"] for feature in features]}


def make(folder, steps=6, **options):
    defaults = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 20, "decay_fraction": 0.5}
    return trainer(folder, steps=steps, **{**defaults, **options})


def block(step):
    return list(range((step - 1) * BATCH, step * BATCH))


def test_a_rewind_reads_other_samples_and_every_resume_repeats_it(tmp_path):
    first = make(tmp_path, anneal_weights={"b": 1.0})
    first.train()
    # Back to step 1, and the samples of steps 2 and 3 are left out.
    again = make(tmp_path, anneal_weights={"b": 1.0})
    seen = Recorder(again)
    again.train_dataset.skips = again.train_dataset.skips.with_range(BATCH, 3 * BATCH)
    again.train(str(tmp_path / "checkpoint-1"))
    assert seen.steps == {step: block(step + 2) for step in range(2, 7)}
    # The anneal begins with the decay, at step 4, whatever was left out.
    phases = {entry["step"]: entry["data/phase"] for entry in again.state.log_history if "loss" in entry}
    assert phases == {step: "anneal" if step > 3 else "stable" for step in range(1, 7)}
    assert read_manifest(tmp_path / "checkpoint-4")["skipped"] == [[BATCH, 3 * BATCH]]
    order = DataOrder.read(tmp_path)
    assert [order.samples_of_step(step) for step in (1, 2, 6)] == [block(1), block(4), block(8)]
    assert order.step_of_sample(5 * BATCH) == (4, 0)
    # A new process that knows nothing of it: from after the rewind and from before it.
    for step in (4, 1):
        resumed = make(tmp_path, anneal_weights={"b": 1.0})
        seen = Recorder(resumed)
        resumed.train(str(tmp_path / f"checkpoint-{step}"))
        assert seen.steps == {number: block(number + 2) for number in range(step + 1, 7)}
        assert equal_weights(weights(resumed), weights(again))


def test_samples_already_trained_on_cannot_be_left_out(tmp_path):
    make(tmp_path).train()
    run = make(tmp_path)
    run.train_dataset.skips = run.train_dataset.skips.with_range(BATCH, 3 * BATCH)
    with pytest.raises(UserError, match="leave out only samples that come later"):
        run.train(str(tmp_path / "checkpoint-2"))


def test_another_global_batch_goes_on_at_the_next_sample(tmp_path):
    make(tmp_path, decay_fraction=0.0).train()
    changed = {"resume_changes": ["sequences_per_step", "max_steps"]}
    run = trainer(
        tmp_path,
        steps=8,
        train_dataset=tiny_mixture(6),
        max_steps=8,
        train_tokens=None,
        global_batch_size=4,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=20,
        per_device_train_batch_size=2,
        decay_fraction=0.0,
        **changed,
    )
    seen = Recorder(run)
    run.train(str(tmp_path / "checkpoint-4"))
    assert seen.steps == {5 + number: list(range(32 + 4 * number, 36 + 4 * number)) for number in range(4)}
    order = DataOrder.read(tmp_path)
    assert order.samples_of_step(4) == block(4)
    assert order.samples_of_step(6) == [36, 37, 38, 39]
    assert order.step_of_sample(37) == (6, 1)
    last = [entry for entry in run.state.log_history if "loss" in entry][-1]
    assert last["data/a/tokens"] + last["data/b/tokens"] == (4 * BATCH + 4 * 4) * 32
    # And again, in a third process with the batch as it is now.
    again = trainer(
        tmp_path,
        steps=8,
        train_dataset=tiny_mixture(6),
        max_steps=8,
        train_tokens=None,
        global_batch_size=4,
        save_strategy="no",
        per_device_train_batch_size=4,
        decay_fraction=0.0,
    )
    seen = Recorder(again)
    again.train(str(tmp_path / "checkpoint-7"))
    assert seen.steps == {8: [44, 45, 46, 47]}
