"""Bits per byte: how well a model predicts held-out text, whatever its tokenizer.

`bits per byte = sum of nats over predicted tokens / (ln 2 * bytes of these tokens)`, pooled over documents, so that
every token weighs the same. Each document is cut into windows of the context length; a window begins with the last
token of the one before, so every token but the first of a document is predicted exactly once, from what precedes it in
its own document and window. The end-of-document token is predicted too and stands for no bytes.
Convention after The Pile (2101.00027), section 3.1, which scores documents the same way.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    import torch

    from hf_pretrain.data.token_source import TokenSource


CONVENTION = (
    "nats of predicted tokens / ln 2 / UTF-8 bytes of these tokens, pooled over held-out documents; windows of "
    "{context} tokens within a document, one token shared; a document's first token is not predicted, its end is"
)


@dataclass(frozen=True)
class ByteScore:
    """Nats and bytes of scored text.

    Args:
        nats (`float`): Sum of the negative log-likelihoods.
        num_bytes (`int`): UTF-8 bytes of the predicted tokens.
        num_tokens (`int`): Predicted tokens.
        num_documents (`int`, *optional*, defaults to 0): Documents they are from.
    """

    nats: float
    num_bytes: int
    num_tokens: int
    num_documents: int = 0

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte; infinite where there are no bytes."""
        return self.nats / (math.log(2) * self.num_bytes) if self.num_bytes else math.inf

    @property
    def nats_per_token(self) -> float:
        """Mean cross-entropy in nats; infinite where there are no tokens."""
        return self.nats / self.num_tokens if self.num_tokens else math.inf

    def __add__(self, other: "ByteScore") -> "ByteScore":
        return ByteScore(
            self.nats + other.nats,
            self.num_bytes + other.num_bytes,
            self.num_tokens + other.num_tokens,
            self.num_documents + other.num_documents,
        )


def windows(length: int, context_length: int) -> list[tuple[int, int]]:
    """Cuts a document into windows that share one token.

    Args:
        length (`int`): Tokens of the document.
        context_length (`int`): Longest window, in tokens; at least 2.

    Returns:
        `list[tuple[int, int]]`: Start and stop of each window. A window predicts all its tokens but the first, so
        together they predict tokens 1 to `length - 1` once each. Empty for a document of fewer than two tokens.

    Raises:
        ValueError: If the context is too short to predict anything.
    """
    if context_length < 2:
        raise ValueError(f"context_length = {context_length}; at least 2 tokens are needed to predict one.")
    return [(start, min(start + context_length, length)) for start in range(0, max(length - 1, 0), context_length - 1)]


def token_nats(model: Any, sequences: Sequence[np.ndarray], tokens_per_batch: int = 4096) -> list[np.ndarray]:
    """Negative log-likelihood of every token of every sequence but the first.

    Sequences of like length are scored together, padded on the right; causal attention keeps the padding out of sight,
    so no mask is needed and none is passed.

    Args:
        model (`PreTrainedModel`): A causal language model.
        sequences (`Sequence[np.ndarray]`): Token ids of each sequence, at least two.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass, padding included.

    Returns:
        `list[np.ndarray]`: For each sequence of length n, n - 1 values in nats, float64.
    """
    import torch

    order = sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index))
    results: list[np.ndarray] = [np.empty(0)] * len(sequences)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            start = 0
            while start < len(order):
                longest = len(sequences[order[start]])
                batch = order[start : start + max(1, tokens_per_batch // longest)]
                ids = torch.zeros(len(batch), longest, dtype=torch.long)
                for row, index in enumerate(batch):
                    ids[row, : len(sequences[index])] = torch.from_numpy(np.asarray(sequences[index], dtype=np.int64))
                ids = ids.to(device)
                nats = _forward_nats(model, ids)
                for row, index in enumerate(batch):
                    results[index] = nats[row, : len(sequences[index]) - 1]
                start += len(batch)
    finally:
        model.train(was_training)
    return results


def _forward_nats(model: Any, ids: "torch.Tensor") -> np.ndarray:
    import torch

    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits.float().reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none"
    )
    return loss.view(ids.shape[0], -1).double().cpu().numpy()


def iterate_documents(
    source: "TokenSource", max_tokens: int | None = None, min_tokens: int = 2, max_document_tokens: int | None = None
) -> Iterator[np.ndarray]:
    """Goes through a token source document by document.

    Args:
        source (`TokenSource`): The source.
        max_tokens (`int`, *optional*): Stop after this many tokens; the last document is cut there.
        min_tokens (`int`, *optional*, defaults to 2): Shorter documents are passed over.
        max_document_tokens (`int`, *optional*): Only the beginning of a longer document is taken, so that a budget is
            not spent on one book.

    Yields:
        `np.ndarray`: Token ids of a document, its end-of-document token last unless it was cut.
    """
    left = source.num_tokens if max_tokens is None else max_tokens
    bounds = [*source.document_starts(0, source.num_tokens).tolist(), source.num_tokens]
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        if left < 2:
            return
        if stop - start < min_tokens:
            continue
        stop = min(stop, start + left, start + (max_document_tokens or stop - start))
        left -= stop - start
        yield source.tokens(start, stop)


def evaluate_documents(
    model: Any,
    documents: Iterable[np.ndarray],
    byte_lengths: np.ndarray,
    context_length: int,
    tokens_per_batch: int = 4096,
    on_progress: Callable[[int], None] | None = None,
) -> ByteScore:
    """Scores documents at a context length.

    Args:
        model (`PreTrainedModel`): A causal language model.
        documents (`Iterable[np.ndarray]`): Token ids of each document.
        byte_lengths (`np.ndarray` of shape `(vocab_size,)`): Bytes by token id.
        context_length (`int`): Longest window, in tokens.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass.
        on_progress (`Callable`, *optional*): Called with the number of tokens scored since its last call.

    Returns:
        `ByteScore`: The pooled score.
    """
    pieces: list[np.ndarray] = []
    count = 0
    for document in documents:
        count += 1
        pieces.extend(document[start:stop] for start, stop in windows(len(document), context_length))
    nats = 0.0
    # Chunks only so that progress can be shown; sorting by length happens within a chunk.
    chunk = max(1, 16 * tokens_per_batch // context_length)
    for start in range(0, len(pieces), chunk):
        part = pieces[start : start + chunk]
        nats += float(sum(values.sum() for values in token_nats(model, part, tokens_per_batch)))
        if on_progress is not None:
            on_progress(sum(map(len, part)))
    num_bytes = int(sum(byte_lengths[piece[1:]].sum() for piece in pieces))
    return ByteScore(nats, num_bytes, sum(len(piece) - 1 for piece in pieces), count)


def evaluate_positions(
    model: Any,
    documents: Iterable[np.ndarray],
    byte_lengths: np.ndarray,
    context_length: int,
    edges: Sequence[int],
    tokens_per_batch: int = 4096,
) -> list[ByteScore]:
    """Scores tokens by how far into their document they stand.

    A model that uses its context predicts late tokens better than early ones, and a longer window better than a short
    one at the same places. The tokens scored depend on the documents and the edges alone, never on the context length,
    so results at two context lengths are about the same text.

    Args:
        model (`PreTrainedModel`): A causal language model.
        documents (`Iterable[np.ndarray]`): Token ids of each document; the part from `edges[-1]` on is left out.
        byte_lengths (`np.ndarray` of shape `(vocab_size,)`): Bytes by token id.
        context_length (`int`): Longest window, in tokens.
        edges (`Sequence[int]`): Rising borders of the buckets, in tokens from the start of the document.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass.

    Returns:
        `list[ByteScore]`: One score a bucket, `len(edges) - 1` of them.
    """
    nats, num_bytes, num_tokens = (np.zeros(len(edges) - 1) for _ in range(3))
    count = 0
    for document in documents:
        document = document[: edges[-1]]
        count += 1
        bounds = windows(len(document), context_length)
        values = token_nats(model, [document[start:stop] for start, stop in bounds], tokens_per_batch)
        for (start, stop), part in zip(bounds, values, strict=True):
            positions = np.arange(start + 1, stop)
            bucket = np.searchsorted(edges, positions, side="right") - 1
            valid = (bucket >= 0) & (bucket < len(nats))
            np.add.at(nats, bucket[valid], part[valid])
            np.add.at(num_bytes, bucket[valid], byte_lengths[document[positions[valid]]])
            np.add.at(num_tokens, bucket[valid], 1)
    return [ByteScore(float(a), int(b), int(c), count) for a, b, c in zip(nats, num_bytes, num_tokens, strict=True)]
