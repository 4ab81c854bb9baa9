"""One writer a folder, a folder that can be written, a checkpoint of this model: known before the first step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_training import tiny_llama, trainer
from transformers import LlamaForCausalLM

from hf_pretrain.trainer.checkpoint_fit import check_fits, saved_shapes
from hf_pretrain.trainer.run_lock import hold_folder
from hf_pretrain.utils.errors import UserError


HOLDER = """
import sys
from hf_pretrain.trainer.run_lock import hold_folder
with hold_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_never_train_in_one_folder(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(UserError, match="another process trains in it"):
            trainer(tmp_path, steps=1).train()
        with hold_folder(tmp_path, is_writer=False):
            pass
        assert not (tmp_path / "log.jsonl").exists()
        holder.kill()  # the lock ends with its process
        holder.wait()
        trainer(tmp_path, steps=1).train()
    finally:
        holder.kill()
        holder.communicate()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(UserError, match=r"output_dir = .*run; nothing can be written there \("):
            trainer(folder, steps=1).train()
    run = trainer(tmp_path / "run", steps=1)
    (tmp_path / "run" / ".writer.lock").mkdir()  # the user who tests may be root, whom permissions do not stop
    with pytest.raises(UserError, match=r"output_dir = .*run; nothing can be written there \("):
        run.train()


def test_no_room_for_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match="0.00 GB are free, checkpoints need about"):
        trainer(tmp_path, steps=1, save_strategy="steps").train()
    assert not (tmp_path / "log.jsonl").exists()


def test_a_checkpoint_of_another_model(tmp_path):
    trainer(tmp_path, steps=1, save_strategy="steps").train()
    checkpoint = tmp_path / "checkpoint-1"
    assert saved_shapes(checkpoint)["model.embed_tokens.weight"] == (64, 16)
    wider = trainer(tmp_path, tiny_llama(hidden_size=32), steps=2, save_strategy="steps", resume_changes=["max_steps"])
    with pytest.raises(UserError, match=r"another model: lm_head.weight has the shape \(64, 16\) there"):
        wider.train(resume_from_checkpoint=True)
    check_fits(tiny_llama(), checkpoint)
    with pytest.raises(UserError, match="it holds lm_head.weight and so on, none of"):
        check_fits(torch.nn.Linear(2, 2), checkpoint)
    with pytest.raises(UserError, match="seed = 7; .* was trained with 42"):
        trainer(tmp_path, steps=1, save_strategy="steps", seed=7).train(resume_from_checkpoint=True)
    assert isinstance(wider.model, LlamaForCausalLM)
