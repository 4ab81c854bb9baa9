"""Tokens, rates and MFU through a stock Trainer."""

import logging
import time

import pytest
from stock_training import Rows, lines, make_trainer, tiny_llama, tiny_strata
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from hf_pretrain.callbacks import throughput
from hf_pretrain.callbacks.throughput import ThroughputCallback
from hf_pretrain.planning.compute import training_flops_per_token
from hf_pretrain.utils.errors import UserError


def test_tokens_and_rates(tmp_path, caplog):
    callback = ThroughputCallback()
    with caplog.at_level(logging.INFO, logger=throughput.__name__):
        trainer = make_trainer(tmp_path, tiny_llama(), [callback], steps=6, batch=2, accumulation=4, logging_steps=2)
        trainer.train()
    assert [line["tokens_seen"] for line in lines(trainer)] == [160, 320, 480]
    assert all(line["tokens_per_second"] > 0 for line in lines(trainer))
    assert callback.train_tokens == 480 and callback.train_seconds > 0
    assert not any("mfu" in line for line in lines(trainer))
    assert "No MFU: the peak of 'cpu' is not known" in caplog.text
    assert not trainer.model._forward_pre_hooks


@pytest.mark.parametrize("model", [tiny_llama(), tiny_strata(num_experts=4)], ids=["llama", "strata"])
def test_mfu_with_its_convention(tmp_path, model):
    callback = ThroughputCallback(flop_convention="matmul_full", peak_tflops=1.0)
    trainer = make_trainer(tmp_path, model, [callback], steps=2)
    trainer.train()
    flops = training_flops_per_token(model.config.to_dict(), 10, "matmul_full")
    for line in lines(trainer):
        assert line["mfu"] == pytest.approx(line["tokens_per_second"] * flops / 1e12)
        assert line["flop_convention"] == "matmul_full"


def test_evaluation_does_not_slow_the_clock(tmp_path):
    class SlowEvaluation(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            time.sleep(0.3)

    callback = ThroughputCallback()
    trainer = make_trainer(
        tmp_path,
        tiny_llama(),
        [callback, SlowEvaluation()],
        steps=4,
        eval_rows=Rows(8),
        eval_strategy="steps",
        eval_steps=1,
    )
    start = time.perf_counter()
    trainer.train()
    assert time.perf_counter() - start > 1.2
    assert callback.train_seconds < 0.6
    assert callback.tokens_seen == 4 * 80  # no evaluation token


def test_resume_counts_on(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    make_trainer(tmp_path, tiny_llama(), [ThroughputCallback()], steps=3, **options).train()
    for restore in (True, False):
        trainer = make_trainer(
            tmp_path, tiny_llama(), [ThroughputCallback()], steps=5, restore_callback_states_from_checkpoint=restore
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        assert lines(trainer)[-1]["tokens_seen"] == 400


def test_unknown_family_has_no_mfu(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = make_trainer(tmp_path, model, [ThroughputCallback(peak_tflops=1.0)], steps=2)
    trainer.train()
    assert "tokens_per_second" in lines(trainer)[0] and "mfu" not in lines(trainer)[0]


def test_bad_options():
    with pytest.raises(UserError, match="Unknown FLOP convention '6nd'"):
        ThroughputCallback(flop_convention="6nd")
    with pytest.raises(UserError, match="peak_tflops = 0"):
        ThroughputCallback(peak_tflops=0)


def test_goodput_and_what_the_rest_was_lost_to(tmp_path):
    class Slow(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            time.sleep(0.2)

    callback = ThroughputCallback()
    options = {"eval_rows": Rows(8), "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    trainer = make_trainer(tmp_path, tiny_llama(), [callback, Slow()], steps=4, save_steps=4, **options)
    start = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - start
    spent = callback.seconds
    assert spent["evaluation"] > 0.4 and spent["saves"] > 0 and spent["steps"] > 0
    assert sum(spent.values()) < whole
    assert lines(trainer)[-1]["goodput"] < 1
    again = ThroughputCallback()
    again.seconds = callback.state()["attributes"]["seconds"]
    assert again.seconds == spent


def test_a_device_of_a_file_comes_before_the_table(tmp_path):
    path = tmp_path / "devices.yaml"
    path.write_text("- {name: cpu, bf16_tflops: 2.0, memory_gb: 16}\n")
    callback = ThroughputCallback(devices=str(path))
    trainer = make_trainer(tmp_path, tiny_llama(), [callback], steps=2)
    trainer.train()
    flops = training_flops_per_token(trainer.model.config.to_dict(), 10, callback.flop_convention)
    assert lines(trainer)[-1]["mfu"] == pytest.approx(lines(trainer)[-1]["tokens_per_second"] * flops / 2e12)
    with pytest.raises(UserError, match="missing"):
        ThroughputCallback(devices=str(tmp_path / "missing.yaml"))
