import os
import signal

import pytest
from tiny_training import equal_weights, trainer, weights
from transformers import TrainerCallback

from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint


class SendSignal(TrainerCallback):
    def __init__(self, number, step, times=1):
        self.number, self.step, self.times = number, step, times

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_saves_after_the_step_and_the_run_goes_on_exactly(tmp_path, name):
    number = getattr(signal, name)
    handler = signal.getsignal(number)
    straight = trainer(tmp_path / "straight")
    straight.train()
    run = trainer(tmp_path / "run", save_strategy="steps", save_steps=100, callbacks=[SendSignal(number, 3)])
    run.train()
    assert (run.state.global_step, run.interrupted_by) == (3, number)
    assert latest_complete_checkpoint(tmp_path / "run").name == "checkpoint-3"
    assert signal.getsignal(number) == handler
    again = trainer(tmp_path / "run", save_strategy="steps", save_steps=100)
    again.train(resume_from_checkpoint=True)
    assert again.interrupted_by is None
    assert equal_weights(weights(again), weights(straight))


def test_a_second_interrupt_stops_at_once(tmp_path):
    run = trainer(tmp_path, callbacks=[SendSignal(signal.SIGINT, 2, times=2)])
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.state.global_step == 1
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_signals_can_be_left_alone(tmp_path):
    run = trainer(tmp_path, steps=1, obey_signals=False)
    run.train()
    assert run.interrupted_by is None
