import io

import pytest
from tiny_training import BATCH, LENGTH, trainer

from hf_pretrain.callbacks import progress as module
from hf_pretrain.callbacks.progress import TrainingProgressCallback


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(tmp_path, monkeypatch, stream, quiet="0", every=0.0):
    monkeypatch.setenv("HF_PRETRAIN_QUIET", quiet)
    real = module.Progress
    monkeypatch.setattr(module, "Progress", lambda *args, **options: real(*args, stream=stream, **options))
    run = trainer(tmp_path, steps=4, callbacks=[TrainingProgressCallback("2_pretrain", every=every)])
    run.train()
    return stream.getvalue()


def test_plain_lines_in_a_log(tmp_path, monkeypatch):
    lines = shown(tmp_path, monkeypatch, io.StringIO()).splitlines()
    assert len(lines) == 5
    tokens = BATCH * LENGTH
    assert lines[1].startswith(f"2_pretrain: {2 * tokens}/{4 * tokens} (50%) tokens, ")
    assert "left | step 2/4, loss " in lines[1]
    assert "lr 1.00e-03" in lines[1]
    assert lines[-1].startswith(f"2_pretrain: {4 * tokens} tokens in ")


def test_one_updating_line_on_a_terminal(tmp_path, monkeypatch):
    text = shown(tmp_path, monkeypatch, Terminal())
    assert text.count("\n") == 1
    assert text.startswith("\r2_pretrain: ")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_nothing_when_quiet(tmp_path, monkeypatch, stream):
    assert shown(tmp_path, monkeypatch, stream, quiet="1") == ""
