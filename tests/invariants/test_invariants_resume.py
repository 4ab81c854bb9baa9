"""Straight run and resumed run are bit by bit equal, with dropout on, wherever the run was stopped."""

import pytest
from tiny_training import equal_weights, losses, tiny_llama, tiny_strata, trainer, weights


MODELS = {
    "llama": lambda: tiny_llama(attention_dropout=0.3),
    "moe": lambda: tiny_strata(
        attention_dropout=0.2, expert_dropout=0.2, router_noise="gumbel", router_bias_update_rate=0.01
    ),
}


def make(folder, name, **options):
    defaults = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 10, "per_device_train_batch_size": 4}
    return trainer(folder, MODELS[name](), anneal_weights={"b": 1.0}, **{**defaults, "decay_fraction": 0.5, **options})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("step", [1, 3, 5])
def test_resumed_is_straight(tmp_path, name, step):
    straight = make(tmp_path, name)
    straight.train()
    resumed = make(tmp_path, name)
    resumed.train(str(tmp_path / f"checkpoint-{step}"))
    assert equal_weights(weights(resumed), weights(straight))
    assert losses(resumed) == losses(straight)


def test_two_stops_and_an_evaluation_between_change_nothing(tmp_path):
    straight = make(tmp_path / "straight", "llama")
    straight.train()
    for step in (2, 4):
        run = make(tmp_path / "run", "llama")
        run.train(str(tmp_path / "run" / f"checkpoint-{step - 2}") if step > 2 else None)
    final = make(tmp_path / "run", "llama")
    final.train(str(tmp_path / "run" / "checkpoint-4"))
    assert equal_weights(weights(final), weights(straight))


def test_another_cut_of_the_batch_reads_the_same_samples(tmp_path):
    # R7: saved at 1 x 8, resumed at 4 x 2; samples are the same, and losses to rounding.
    def run(folder, micro):
        return trainer(folder, save_strategy="steps", save_steps=2, optim="sgd", per_device_train_batch_size=micro)

    straight = run(tmp_path / "straight", 8)
    straight.train()
    run(tmp_path / "run", 1).train()
    resumed = run(tmp_path / "run", 4)
    resumed.train(str(tmp_path / "run" / "checkpoint-4"))
    assert losses(resumed) == pytest.approx(losses(straight), abs=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_data_workers_change_nothing(tmp_path, workers):
    straight = make(tmp_path / "straight", "llama", save_strategy="no")
    straight.train()
    other = make(tmp_path / "other", "llama", save_strategy="no", dataloader_num_workers=workers)
    other.train()
    assert equal_weights(weights(other), weights(straight))
