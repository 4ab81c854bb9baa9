"""All sources, both splits, and the long documents: `tokens/<split>/<source>/`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.data import Document

from hf_pretrain.corpus.shards.long_documents import LongDocumentsConfig, select_long_documents
from hf_pretrain.corpus.shards.splits import ValidationConfig, validation_mask
from hf_pretrain.corpus.shards.tokenization import encode_documents, write_token_source
from hf_pretrain.utils.progress import Progress


if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)


def write_token_shards(
    folder: str | Path,
    sources: Mapping[str, list[Document]],
    tokenizer: "Tokenizer",
    validation: ValidationConfig,
    long_documents: LongDocumentsConfig,
    shard_tokens: int = 100_000_000,
    tokenizer_name: str = "byte-level BPE",
) -> list[dict[str, Any]]:
    """Writes every source as token shards.

    Args:
        folder (`str` or `Path`): The `tokens` folder.
        sources (`Mapping[str, list[Document]]`): Documents by source; a source without documents is left out.
        tokenizer (`tokenizers.Tokenizer`): The tokenizer.
        validation (`ValidationConfig`): The split.
        long_documents (`LongDocumentsConfig`): The extra source of long documents; each stays in its split.
        shard_tokens (`int`, *optional*, defaults to 100000000): A shard is closed once it has this many tokens.
        tokenizer_name (`str`, *optional*): What datatrove's metadata file calls the tokenizer.

    Returns:
        `list[dict]`: The `source.json` of every folder written.
    """
    folder = Path(folder)
    summaries: list[dict[str, Any]] = []
    long: dict[str, tuple[list[Document], list[np.ndarray]]] = {"train": ([], []), "validation": ([], [])}

    def write(split: str, name: str, documents: list[Document], encoded: list[np.ndarray]) -> None:
        if documents:
            target = folder / split / name
            summaries.append(
                write_token_source(
                    target, name, split, documents, tokenizer, encoded, shard_tokens, tokenizer_name, validation.seed
                )
            )

    total = sum(len(documents) for documents in sources.values())
    with Progress("tokenize", total) as progress:
        for name, documents in sources.items():
            if not documents:
                logger.warning("source %s has no documents left; no tokens are written for it", name)
                continue
            encoded = list(encode_documents(documents, tokenizer, progress.update))
            held_out = validation_mask([document.id for document in documents], validation)
            chosen = select_long_documents(documents, [len(ids) for ids in encoded], long_documents)
            for index in chosen:
                texts, ids = long["validation" if held_out[index] else "train"]
                texts.append(documents[index])
                ids.append(encoded[index])
            for split, wanted in (("train", False), ("validation", True)):
                part = [index for index in range(len(documents)) if held_out[index] is wanted]
                write(split, name, [documents[index] for index in part], [encoded[index] for index in part])
    for split, (documents, encoded) in long.items():
        write(split, long_documents.name, documents, encoded)
    return summaries
