"""Checkpoints written by a thread: of the step they name, whole, in turn, and with their errors."""

import threading

import pytest
import torch
from tiny_training import equal_weights, tiny_strata, trainer, weights
from transformers import TrainerCallback

from hf_pretrain.trainer import saving
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint, list_checkpoints, why_incomplete
from hf_pretrain.trainer.saving import CheckpointWriter, to_host
from hf_pretrain.trainer.stages import OPTIMIZER_FILE


SAVING = {"save_strategy": "steps", "save_steps": 2, "async_save": True}


def test_a_later_step_does_not_reach_into_the_checkpoint(tmp_path, monkeypatch):
    """The write of step 2 is held back until step 4 is done; a straight run's checkpoint of step 2 is the same."""
    options = {"clipping": "zclip", "save_total_limit": 10}
    straight = trainer(tmp_path / "straight", tiny_strata(), save_strategy="steps", save_steps=2, **options)
    straight.train()
    gate, publish = threading.Event(), saving.publish_checkpoint

    def held(path, *arguments, **extra):
        assert gate.wait(60)
        publish(path, *arguments, **extra)

    class Open(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                assert not list_checkpoints(tmp_path / "beside")
                gate.set()

    monkeypatch.setattr(saving, "publish_checkpoint", held)
    write = trainer(tmp_path / "beside", tiny_strata(), callbacks=[Open()], **SAVING, **options)
    snapshot = write._snapshot

    def late(staging):
        inner = snapshot(staging)

        def work():
            assert gate.wait(60)
            inner()

        return work

    write._snapshot = late
    write.train()
    assert equal_weights(weights(write), weights(straight))
    for step in (2, 4, 6):
        ours, theirs = (tmp_path / name / f"checkpoint-{step}" for name in ("beside", "straight"))
        assert why_incomplete(ours) is None
        assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
        assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
        first, second = (torch.load(folder / OPTIMIZER_FILE, weights_only=True) for folder in (ours, theirs))
        for number, state in first["state"].items():
            assert all(torch.equal(value, second["state"][number][name]) for name, value in state.items())
    resumed = trainer(tmp_path / "beside", tiny_strata(seed=9), **SAVING, **options)
    resumed.train(tmp_path / "beside" / "checkpoint-2")
    assert equal_weights(weights(resumed), weights(straight))


def test_a_failed_write_stops_the_run_and_leaves_the_old_one(tmp_path, monkeypatch):
    run = trainer(tmp_path, steps=8, **SAVING)
    save = run._save

    def full(folder, state_dict=None):
        if "checkpoint-4" in folder:
            raise OSError(28, "No space left on device")
        save(folder, state_dict=state_dict)

    run._save = full
    with pytest.raises(OSError, match="No space left"):
        run.train()
    assert run.state.global_step in (5, 6)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-2"]
    assert latest_complete_checkpoint(tmp_path).name == "checkpoint-2"


def test_one_piece_of_writing_at_a_time_and_an_error_once():
    order, gate = [], threading.Event()

    def slow():
        gate.wait(60)
        order.append("slow")

    writer = CheckpointWriter()
    writer.submit(slow)
    threading.Timer(0.05, gate.set).start()
    writer.submit(lambda: order.append("next"))
    writer.wait()
    assert order == ["slow", "next"]

    def broken():
        raise OSError("torn")

    writer.submit(broken)
    with pytest.raises(OSError, match="torn"):
        writer.wait()
    writer.wait()


def test_copies_share_what_was_shared():
    weight = torch.arange(4.0)
    copied = to_host({"a": weight, "b": [weight, (weight[:2], 3)]})
    weight += 1
    assert copied["a"] is copied["b"][0] and copied["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert copied["b"][1][0].tolist() == [0.0, 1.0] and copied["b"][1][1] == 3
