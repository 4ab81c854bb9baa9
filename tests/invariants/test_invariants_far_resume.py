"""Step 10^6 of a run over 10^12 tokens begins at once: nothing that was read before is read again."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tiny_training import LENGTH, arguments, tiny_llama

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import BatchSpan
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.trainer.data_state import DataState
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer


TOKENS = 10**12


def sparse_source(folder, name, num_tokens, shards=4):
    """A source of real files that take no room on the disk."""
    folder.mkdir(parents=True)
    files, size = [], num_tokens // shards
    for number in range(shards):
        path = folder / f"{number:05d}.ds"
        with open(path, "wb") as stream:
            os.truncate(stream.fileno(), 2 * size)
        ends = np.linspace(size // 1000, size, 1000).astype("<u8")
        ends.tofile(f"{path}.index")
        files.append({"name": path.name, "num_tokens": size, "num_documents": 1000, "sha256": "0" * 64})
    description = {
        "schema": 1,
        "name": name,
        "split": "train",
        "token_size": 2,
        "vocab_size": 64,
        "eos_token_id": 0,
        "num_tokens": size * shards,
        "num_documents": 1000 * shards,
        "files": files,
    }
    (folder / "source.json").write_text(json.dumps(description))
    return folder


def resident_bytes(folder):
    """Bytes of the files of a folder that this process has mapped and touched; None where the system does not say."""
    maps = Path("/proc/self/smaps")
    if not maps.is_file():
        return None
    total, is_ours = 0, False
    for line in maps.read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = str(folder) in line
        elif is_ours and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def test_the_first_batch_of_a_far_step_reads_nothing_else(tmp_path, monkeypatch):
    rows, blocks = [], []
    read_row, locate = TokenSource.read_row, MixtureSchedule.locate_range
    monkeypatch.setattr(
        TokenSource, "read_row", lambda self, start, out: rows.append(start) or read_row(self, start, out)
    )
    monkeypatch.setattr(
        MixtureSchedule, "locate_range", lambda self, *ends: blocks.append(ends) or locate(self, *ends)
    )
    batch = TOKENS // (10**6 * LENGTH)  # 10^6 steps and a few more
    try:
        folders = [sparse_source(tmp_path / name, name, TOKENS // 2) for name in "ab"]
    except OSError as error:
        pytest.skip(f"this file system has no such files: {error}")
    steps = 10**6 - 1
    args = arguments(tmp_path / "run", 8, per_device_train_batch_size=8)
    sources = [TokenSource.open(folder) for folder in folders]
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, TOKENS // LENGTH)
    dataset = MixtureDataset(sources, schedule, LENGTH, 1)
    run = PretrainTrainer(tiny_llama(), args, train_dataset=dataset)
    run._resume_step = steps
    run._data_state = DataState(BatchSpan(0, 0, batch, 1, 8), {"samples": steps * batch}, steps, schedule)
    run._data_state.apply(dataset, tmp_path / "run")
    first = next(iter(run.get_train_dataloader()))
    # One batch ahead at most, and no sample before the position is even located.
    assert 8 <= len(rows) <= 16
    assert len(blocks) <= 2 and all(stop - start <= 1024 for start, stop in blocks)
    touched = resident_bytes(tmp_path)
    assert touched is None or 0 < touched < 50e6 < 2 * TOKENS
    position = steps * batch
    assert position * LENGTH > 0.99 * TOKENS
    assert first["input_ids"].tolist() == [dataset[position + row]["input_ids"].tolist() for row in range(8)]
    assert dataset.consumed(position)["a"]["tokens"] == pytest.approx(0.7 * position * LENGTH, abs=3 * LENGTH)
