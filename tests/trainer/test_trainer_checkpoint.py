import errno
import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from tiny_training import equal_weights, trainer, weights

from hf_pretrain.trainer import checkpoint as module
from hf_pretrain.trainer.checkpoint import (
    MANIFEST_FILE,
    check_free_space,
    discard_staging,
    latest_complete_checkpoint,
    list_checkpoints,
    publish_checkpoint,
    rotate_checkpoints,
    staging_folder,
    why_incomplete,
)
from hf_pretrain.utils.errors import UserError


def write(folder, step, run_id="run", content=b"weights"):
    path = folder / f"checkpoint-{step}"
    staging = staging_folder(path)
    (staging / "sub").mkdir(parents=True)
    (staging / "model.safetensors").write_bytes(content)
    (staging / "sub" / "rng_state.pth").write_bytes(b"rng")
    publish_checkpoint(path, run_id)
    return path


def names(folder):
    return sorted(item.name for item in folder.iterdir())


def test_published_checkpoints_are_complete_and_nothing_else_is_left(tmp_path):
    path = write(tmp_path, 4)
    assert why_incomplete(path) is None
    assert names(tmp_path) == ["checkpoint-4"]
    assert names(path) == [MANIFEST_FILE, "model.safetensors", "sub"]
    write(tmp_path, 4, content=b"other")
    assert (path / "model.safetensors").read_bytes() == b"other"
    assert names(tmp_path) == ["checkpoint-4"]


def test_search_walks_back_over_half_written_ones(tmp_path, caplog):
    # K1: a truncated file, an empty folder with the highest number; the stock search takes the last and dies.
    good = write(tmp_path, 4)
    (write(tmp_path, 8) / "model.safetensors").write_bytes(b"weig")
    (write(tmp_path, 12) / "model.safetensors").write_bytes(b"WEIGHTS")
    (write(tmp_path, 20) / "sub" / "rng_state.pth").unlink()
    (tmp_path / "checkpoint-99").mkdir()
    with caplog.at_level(logging.WARNING):
        assert latest_complete_checkpoint(tmp_path) == good
    for part in (
        "checkpoint-99: checkpoint_manifest.json is missing",
        "checkpoint-20: sub/rng_state.pth is missing",
        "checkpoint-12: the content of model.safetensors changed",
        "checkpoint-8: model.safetensors has 4 bytes instead of 7",
    ):
        assert part in caplog.text
    shutil.rmtree(good)
    assert latest_complete_checkpoint(tmp_path) is None
    assert latest_complete_checkpoint(tmp_path / "missing") is None


def test_order_is_by_step(tmp_path):
    for step in (100, 20, 3):
        write(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-3", "checkpoint-20", "checkpoint-100"]
    assert latest_complete_checkpoint(tmp_path).name == "checkpoint-100"


def test_rotation_keeps_the_newest_of_this_run_and_touches_no_other(tmp_path):
    # K2: a stale checkpoint-1000 of an older run; limit 2, steps 10, 20, 30.
    write(tmp_path, 1000, "older")
    for step in (10, 20, 30):
        path = write(tmp_path, step)
        rotate_checkpoints(tmp_path, "run", 2, [path])
    assert names(tmp_path) == ["checkpoint-1000", "checkpoint-20", "checkpoint-30"]
    rotate_checkpoints(tmp_path, "run", 1, [tmp_path / "checkpoint-20"])
    assert names(tmp_path) == ["checkpoint-1000", "checkpoint-20", "checkpoint-30"]
    rotate_checkpoints(tmp_path, "run", None, [])
    assert len(names(tmp_path)) == 3


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path):
    path = write(tmp_path, 4)
    path.rename(tmp_path / ".checkpoint-4.old")
    staging_folder(tmp_path / "checkpoint-8").mkdir()
    discard_staging(tmp_path)
    assert names(tmp_path) == ["checkpoint-4"]
    assert why_incomplete(path) is None


def test_no_room_is_said_before_the_first_step(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(UserError, match="checkpoints need about 0.00 GB"):
        check_free_space(tmp_path / "not" / "there", 1000)
    with pytest.raises(UserError, match="free some space"):
        trainer(tmp_path / "run", save_strategy="steps").train()


def test_a_full_disk_leaves_the_older_checkpoint_valid(tmp_path, monkeypatch):
    # K3: the second save meets a full disk.
    straight = trainer(tmp_path / "straight")
    straight.train()
    run = trainer(tmp_path / "run", save_strategy="steps", save_steps=2)
    save = torch.save

    def full_disk(value, path, *rest, **options):
        if "checkpoint-4" in str(path) and "optimizer" in str(path):
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(value, path, *rest, **options)

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run.train()
    monkeypatch.setattr(torch, "save", save)
    assert [item for item in names(tmp_path / "run") if "checkpoint" in item] == ["checkpoint-2"]
    again = trainer(tmp_path / "run", save_strategy="steps", save_steps=2)
    again.train(resume_from_checkpoint=True)
    assert equal_weights(weights(again), weights(straight))


def test_resume_needs_a_complete_checkpoint_and_names_what_is_missing(tmp_path):
    # K4: the error names the missing file.
    with pytest.raises(UserError, match="there is no complete checkpoint to go on from"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    trainer(tmp_path, steps=2, save_strategy="steps").train()
    (tmp_path / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(UserError, match="optimizer.pt is missing: choose a complete checkpoint"):
        trainer(tmp_path, steps=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
