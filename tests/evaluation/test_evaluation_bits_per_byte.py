"""Bits per byte against closed forms, and against the plain forward pass."""

import math

import numpy as np
import pytest
import torch
from tiny_text_models import SAMPLE, byte_level_tokenizer, tiny_llama

from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.evaluation.bits_per_byte import (
    ByteScore,
    evaluate_documents,
    evaluate_positions,
    iterate_documents,
    token_nats,
    windows,
)
from hf_pretrain.evaluation.byte_lengths import byte_alphabet, token_byte_lengths
from hf_pretrain.utils.errors import UserError


class Uniform(torch.nn.Module):
    """A model to which all tokens are equally likely."""

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size = vocab_size
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache=None):
        return type("Output", (), {"logits": torch.zeros(*input_ids.shape, self.vocab_size)})


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


def test_alphabet_has_a_character_for_every_byte():
    assert len(byte_alphabet()) == 256


def test_byte_lengths_sum_to_the_bytes_of_the_text(tokenizer):
    lengths = token_byte_lengths(tokenizer)
    for text in [*SAMPLE, "caf\u00e9 \u4e2d\u6587 \U0001f600\n\ttabs", ""]:
        ids = tokenizer(text)["input_ids"]
        assert lengths[ids].sum() == len(text.encode("utf-8")) if ids else text == ""
    assert lengths[tokenizer.all_special_ids].sum() == 0
    assert len(lengths) == len(tokenizer)


def test_added_words_count_their_bytes_and_other_vocabularies_are_refused(tokenizer):
    other = byte_level_tokenizer()
    other.add_tokens(["\u4e2d\u6587"])
    assert token_byte_lengths(other)[other.convert_tokens_to_ids("\u4e2d\u6587")] == 6
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a b": 0, "[UNK]": 1}, "[UNK]")))
    with pytest.raises(UserError, match="not written in bytes"):
        token_byte_lengths(words)


@pytest.mark.parametrize("context_length", [2, 3, 7, 16, 100])
def test_windows_predict_every_token_but_the_first_once(context_length):
    for length in range(1, 40):
        cut = windows(length, context_length)
        predicted = [position for start, stop in cut for position in range(start + 1, stop)]
        assert predicted == list(range(1, length))
        assert all(stop - start <= context_length for start, stop in cut)


def test_a_window_of_one_token_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        windows(5, 1)


def test_uniform_model_gives_log2_of_the_vocabulary_per_token():
    # 4 tokens predicted of 8 equally likely ones, 2 bytes each: 3 bits * 4 / 8 bytes.
    score = evaluate_documents(Uniform(8), [np.arange(5)], np.full(8, 2), context_length=3)
    assert score.bits_per_byte == pytest.approx(1.5)
    assert (score.num_tokens, score.num_bytes, score.num_documents) == (4, 8, 1)


def test_nats_agree_with_the_plain_forward_pass_whatever_the_batching(tokenizer):
    model = tiny_llama(len(tokenizer))
    rng = np.random.default_rng(0)
    sequences = [rng.integers(6, 300, size=length) for length in (2, 9, 30, 17)]
    together = token_nats(model, sequences, tokens_per_batch=1000)
    one_by_one = token_nats(model, sequences, tokens_per_batch=1)
    for sequence, batched, single in zip(sequences, together, one_by_one, strict=True):
        ids = torch.from_numpy(sequence)[None]
        expected = float(model(input_ids=ids, labels=ids).loss.detach()) * (len(sequence) - 1)
        assert batched.sum() == pytest.approx(expected, rel=1e-5)
        assert single == pytest.approx(batched, abs=1e-4)


def test_training_mode_is_given_back(tokenizer):
    model = tiny_llama(len(tokenizer)).train()
    token_nats(model, [np.arange(6, 12)])
    assert model.training


def test_documents_do_not_see_each_other_and_order_does_not_matter(tokenizer):
    model, lengths = tiny_llama(len(tokenizer)), token_byte_lengths(tokenizer)
    documents = [np.array(tokenizer(text)["input_ids"] + [0]) for text in SAMPLE]
    total = evaluate_documents(model, documents, lengths, 16)
    apart = sum((evaluate_documents(model, [d], lengths, 16) for d in documents), ByteScore(0, 0, 0))
    assert total.nats == pytest.approx(apart.nats, rel=1e-5) and total.num_bytes == apart.num_bytes
    again = evaluate_documents(model, documents[::-1], lengths, 16)
    assert again.bits_per_byte == pytest.approx(total.bits_per_byte, rel=1e-6)


def test_iterating_a_source_respects_documents_and_the_budget():
    source = TokenSource.from_arrays("s", np.arange(20), [5, 6, 14, 20])
    assert [list(d) for d in iterate_documents(source)] == [
        [0, 1, 2, 3, 4],
        [6, 7, 8, 9, 10, 11, 12, 13],
        [14, 15, 16, 17, 18, 19],
    ]
    assert [len(d) for d in iterate_documents(source, max_tokens=8)] == [5, 3]
    assert [len(d) for d in iterate_documents(source, max_document_tokens=4)] == [4, 4, 4]
    assert [len(d) for d in iterate_documents(source, min_tokens=6)] == [8, 6]


def test_position_buckets_hold_the_same_tokens_at_any_context(tokenizer):
    model = Uniform(8)
    documents = [np.arange(40) % 8, np.arange(33) % 8]
    for context in (4, 40):
        scores = evaluate_positions(model, documents, np.ones(8, dtype=int), context, [1, 8, 32])
        assert [score.num_tokens for score in scores] == [14, 48]
        assert all(score.bits_per_byte == pytest.approx(3) for score in scores)


def test_long_windows_help_a_model_that_copies():
    class Copier(Uniform):
        """Predicts the token seen 10 places before, where the window still holds it."""

        def forward(self, input_ids, use_cache=None):
            logits = torch.zeros(*input_ids.shape, self.vocab_size)
            logits[:, 9:].scatter_(2, input_ids[:, :-9, None], 20.0)
            return type("Output", (), {"logits": logits})

    document = np.tile(np.random.default_rng(0).permutation(10), 6)
    lengths = np.ones(10, dtype=int)
    short, long = (evaluate_positions(Copier(10), [document], lengths, c, [1, 10, 60]) for c in (8, 60))
    assert short[1].bits_per_byte == pytest.approx(math.log2(10))
    assert long[1].bits_per_byte < 0.01


def test_empty_scores_are_infinite_not_zero():
    assert ByteScore(0.0, 0, 0).bits_per_byte == math.inf
