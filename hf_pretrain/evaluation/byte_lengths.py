"""Bytes of text behind each token of a byte-level vocabulary.

Bits per byte needs the bytes of exactly the tokens that were scored. A byte-level BPE vocabulary writes one printable
character for each byte, so a token's bytes are its characters; special tokens stand for no text.
"""

from typing import TYPE_CHECKING

import numpy as np

from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def byte_alphabet() -> set[str]:
    """The 256 characters that byte-level vocabularies write for bytes (GPT-2's table).

    Returns:
        `set[str]`: Printable Latin-1 characters for themselves, and code points from 256 on for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return {chr(byte) for byte in printable} | {chr(256 + index) for index in range(256 - len(printable))}


def token_byte_lengths(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Counts the bytes of every token.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A byte-level BPE tokenizer.

    Returns:
        `np.ndarray` of shape `(vocab_size,)`: Bytes by token id, int64; 0 for special tokens and for ids without a
        token.

    Raises:
        UserError: If the vocabulary is not byte-level.
    """
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_vocab()
    special = set(tokenizer.all_special_tokens)
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    alphabet = byte_alphabet()
    for token, index in vocabulary.items():
        if token in special:
            continue
        if token in added:
            # Added tokens are kept as plain text, not in the byte alphabet.
            lengths[index] = 0 if tokenizer.added_tokens_decoder[index].special else len(token.encode("utf-8"))
        elif alphabet.issuperset(token):
            lengths[index] = len(token)
        else:
            raise UserError(
                f"tokenizer = {tokenizer.name_or_path or type(tokenizer).__name__}; its token {token!r} is not "
                "written in bytes: bits per byte is defined here for byte-level vocabularies."
            )
    return lengths
