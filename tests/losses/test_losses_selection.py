"""Which loss is taken, what is said about it, and what is refused."""

import logging

import pytest

from hf_pretrain.losses import liger, selection
from hf_pretrain.losses.causal_lm import causal_lm_loss
from hf_pretrain.losses.chunked import chunked_causal_lm_loss
from hf_pretrain.losses.liger import liger_causal_lm_loss
from hf_pretrain.utils.errors import UserError


def test_auto_takes_chunks_on_cpu_and_says_why_once(caplog, monkeypatch):
    monkeypatch.setattr(selection, "_told", set())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with caplog.at_level(logging.INFO, logger=selection.__name__):
        for _ in range(3):
            assert selection.resolve_loss_implementation("auto", "cpu") is chunked_causal_lm_loss
    assert len(caplog.records) == 1
    assert "chunked" in caplog.text and "Liger not used" in caplog.text


def test_auto_stays_with_chunks_in_the_interpreter(monkeypatch):
    """The interpreter runs Liger's kernels on CPU, but thousands of times slower: only on demand."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert selection.resolve_loss_implementation("auto", "cpu") is chunked_causal_lm_loss
    assert selection.resolve_loss_implementation("liger", "cpu") is liger_causal_lm_loss


def test_auto_takes_liger_where_it_runs(caplog, monkeypatch):
    monkeypatch.setattr(selection, "_told", set())
    with caplog.at_level(logging.INFO, logger=selection.__name__):
        assert selection.resolve_loss_implementation("auto", "cuda") is liger_causal_lm_loss
    assert "liger (its kernels run on cuda)" in caplog.text


def test_auto_without_liger_names_the_pip_line(caplog, monkeypatch):
    monkeypatch.setattr(selection, "_told", set())
    monkeypatch.setattr(liger, "is_available", lambda module: module != "liger_kernel")
    with caplog.at_level(logging.INFO, logger=selection.__name__):
        assert selection.resolve_loss_implementation("auto", "cuda") is chunked_causal_lm_loss
    assert 'pip install "hf-pretrain[liger]"' in caplog.text


def test_names(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert selection.resolve_loss_implementation("reference", "cpu") is causal_lm_loss
    assert selection.resolve_loss_implementation("chunked", "cuda") is chunked_causal_lm_loss
    with pytest.raises(UserError, match="Triton has no driver for device 'cpu'; use 'auto' or 'chunked'"):
        selection.resolve_loss_implementation("liger", "cpu")
    with pytest.raises(UserError, match="Unknown loss implementation 'ligr'. Did you mean 'liger'"):
        selection.resolve_loss_implementation("ligr", "cpu")
