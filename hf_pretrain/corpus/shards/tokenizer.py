"""A byte-level BPE tokenizer trained on the corpus, saved as a `transformers` tokenizer.

Any text can be encoded and decoded without loss (no unknown token, no normaliser). Digits are grouped by three at
most. The four special tokens have the ids 0 to 3; `<|endoftext|>` ends a document, `<|im_end|>` ends a turn. The
vocabulary is padded to a multiple of 64 by reserved tokens, so that matrix shapes suit the hardware.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, PAD)
VOCAB_MULTIPLE = 64

# A contraction, a word with the mark or space before it, up to three digits, marks, line breaks, other white space.
_PRETOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}[\p{L}\p{M}]*|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# ChatML. The closing token of an assistant turn is inside the markers: a model that never learns to end does not end.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


@dataclass
class TokenizerConfig:
    """Settings of the tokenizer.

    Args:
        vocab_size (`int`, *optional*, defaults to 32000): Tokens, the special ones included; rounded up to a multiple
            of 64.
        train_bytes (`int`, *optional*, defaults to 100000000): Most bytes of text to train on.
        balance (`float`, *optional*, defaults to 0.5): Shares of the sources in that text are their sizes to this
            power: 1 as they are, 0 equal.
        min_frequency (`int`, *optional*, defaults to 2): Fewest occurrences of a pair that is merged.
        path (`str`, *optional*): An existing tokenizer folder to use instead of training one.
    """

    vocab_size: int = 32000
    train_bytes: int = 100_000_000
    balance: float = 0.5
    min_frequency: int = 2
    path: str | None = None

    def __post_init__(self) -> None:
        least = 256 + len(SPECIAL_TOKENS)
        if self.vocab_size < least:
            raise UserError(
                f"tokenizer.vocab_size = {self.vocab_size}; at least {least} (256 bytes + special tokens)."
            )
        if self.vocab_size > 2**24:
            # The trainer makes room for all at once; no tokenizer in use has a tenth of this.
            raise UserError(f"tokenizer.vocab_size = {self.vocab_size}; at most {2**24}.")
        if self.min_frequency < 0:
            raise UserError(f"tokenizer.min_frequency = {self.min_frequency}; 0 or more is expected.")
        if self.train_bytes < 1:
            raise UserError(f"tokenizer.train_bytes = {self.train_bytes}; at least 1 is needed.")
        if not 0.0 <= self.balance <= 1.0:
            raise UserError(f"tokenizer.balance = {self.balance}; 0 (equal shares) to 1 (shares by size) is allowed.")


def pad_vocabulary(size: int) -> int:
    """Rounds a vocabulary up.

    Args:
        size (`int`): Tokens in use.

    Returns:
        `int`: The next multiple of 64.
    """
    return -(-size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def sample_budgets(sizes: Mapping[str, int], budget: int, balance: float) -> dict[str, int]:
    """Divides the training text among the sources.

    Args:
        sizes (`Mapping[str, int]`): Bytes of each source.
        budget (`int`): Bytes in all.
        balance (`float`): Power of the size that a share is proportional to.

    Returns:
        `dict[str, int]`: Bytes to take of each source, never more than it has; what a small one leaves goes to the
        rest.
    """
    remaining = {name: size for name, size in sizes.items() if size > 0}
    result = dict.fromkeys(sizes, 0)
    while remaining and budget > 0:
        total = sum(size**balance for size in remaining.values())
        shares = {name: budget * size**balance / total for name, size in remaining.items()}
        full = [name for name in remaining if shares[name] >= remaining[name]]
        if not full:
            result.update({name: int(share) for name, share in shares.items()})
            break
        for name in full:
            result[name] = remaining.pop(name)
            budget -= result[name]
    return result


def sample_texts(
    texts: Mapping[str, Sequence[tuple[str, str]]], config: TokenizerConfig
) -> tuple[list[str], dict[str, int]]:
    """Chooses the texts to train on; the choice depends on ids alone, not on the order of documents.

    Args:
        texts (`Mapping[str, Sequence[tuple[str, str]]]`): For each source its documents as (id, text).
        config (`TokenizerConfig`): Budget and balance.

    Returns:
        `tuple[list[str], dict[str, int]]`: The texts, and the bytes taken of each source.
    """
    sizes = {name: sum(len(text.encode()) for _, text in rows) for name, rows in texts.items()}
    budgets = sample_budgets(sizes, config.train_bytes, config.balance)
    chosen, taken = [], dict.fromkeys(texts, 0)
    for name in sorted(texts):
        for _, text in sorted(texts[name], key=lambda row: hashlib.blake2b(row[0].encode()).digest()):
            left = budgets[name] - taken[name]
            if left <= 0:
                break
            piece = text if len(text) <= left else text[:left]
            chosen.append(piece)
            taken[name] += len(piece.encode())
    return chosen, taken


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
    """Trains a byte-level BPE tokenizer.

    Args:
        texts (`Iterable[str]`): Training texts, in a fixed order.
        config (`TokenizerConfig`): Its size.

    Returns:
        `tokenizers.Tokenizer`: The tokenizer; its number of tokens is a multiple of 64.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    size = pad_vocabulary(config.vocab_size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRETOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # A small corpus may not hold enough pairs to merge.
    short = pad_vocabulary(tokenizer.get_vocab_size()) - tokenizer.get_vocab_size()
    if short:
        tokenizer.add_special_tokens([AddedToken(f"<|reserved_{i}|>", special=True) for i in range(short)])
    return tokenizer


def save_tokenizer(tokenizer: "Tokenizer", folder: str | Path) -> None:
    """Saves a tokenizer so that `AutoTokenizer.from_pretrained(folder)` reads it.

    Args:
        tokenizer (`tokenizers.Tokenizer`): A tokenizer of [`train_tokenizer`].
        folder (`str` or `Path`): The folder to write into.
    """
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        extra_special_tokens=[TURN_START, TURN_END],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(str(folder))


def load_tokenizer(folder: str | Path) -> "Tokenizer":
    """Reads the plain tokenizer of a folder.

    Args:
        folder (`str` or `Path`): A folder with `tokenizer.json`.

    Returns:
        `tokenizers.Tokenizer`: The tokenizer, which reads special tokens in documents as ordinary text: a page that
        shows `<|endoftext|>` must not end a document.

    Raises:
        UserError: If there is no readable tokenizer.
    """
    from tokenizers import Tokenizer

    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"tokenizer = {folder}; there is no tokenizer.json in it: name a saved tokenizer's folder.")
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot read
        raise UserError(f"tokenizer = {file}; it cannot be read ({error}).") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_of_text_id(tokenizer: "Tokenizer") -> int:
    """Id of the token that ends a document.

    Args:
        tokenizer (`tokenizers.Tokenizer`): The tokenizer.

    Returns:
        `int`: Id of `<|endoftext|>`.

    Raises:
        UserError: If the tokenizer has no such token.
    """
    identifier = tokenizer.token_to_id(END_OF_TEXT)
    if identifier is None:
        raise UserError(f"tokenizer: it has no {END_OF_TEXT} token, which must end every document: add it.")
    return identifier
