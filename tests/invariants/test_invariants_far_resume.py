"""Step 10^6 of a run over 10^12 tokens begins at once: nothing that was read before is read again."""

import json
import os
import time

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


def test_the_first_batch_comes_in_under_two_seconds(tmp_path):
    batch = TOKENS // (10**6 * LENGTH)  # 10^6 steps and a few more
    try:
        folders = [sparse_source(tmp_path / name, name, TOKENS // 2) for name in "ab"]
    except OSError as error:
        pytest.skip(f"this file system has no such files: {error}")
    steps = 10**6 - 1
    args = arguments(tmp_path / "run", 8, per_device_train_batch_size=8)
    begin = time.perf_counter()
    sources = [TokenSource.open(folder) for folder in folders]
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, TOKENS // LENGTH)
    dataset = MixtureDataset(sources, schedule, LENGTH, 1)
    run = PretrainTrainer(tiny_llama(), args, train_dataset=dataset)
    run._resume_step = steps
    run._data_state = DataState(BatchSpan(0, 0, batch, 1, 8), {"samples": steps * batch}, steps, schedule)
    run._data_state.apply(dataset, tmp_path / "run")
    first = next(iter(run.get_train_dataloader()))
    seconds = time.perf_counter() - begin
    position = steps * batch
    assert position * LENGTH > 0.99 * TOKENS
    assert first["input_ids"].tolist() == [dataset[position + row]["input_ids"].tolist() for row in range(8)]
    assert dataset.consumed(position)["a"]["tokens"] == pytest.approx(0.7 * position * LENGTH, abs=3 * LENGTH)
    assert seconds < 2
