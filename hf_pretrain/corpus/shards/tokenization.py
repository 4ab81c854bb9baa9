"""One source of one split as token shards: datatrove's `.ds` format, provenance, and a `source.json`.

A shard is raw little-endian `uint16` (`uint32` where the vocabulary exceeds 65,536), its `.index` the cumulative ends
of its documents in tokens, the `<|endoftext|>` that closes each included; there is no token before a document.
Documents lie in an order that depends on their ids alone, so neighbours in a window are strangers and a run can be
repeated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.tokens.tokenizer import TokenizedFile

from hf_pretrain.corpus.shards.provenance import ProvenanceWriter, provenance_record
from hf_pretrain.corpus.shards.splits import stable_fraction
from hf_pretrain.corpus.shards.tokenizer import end_of_text_id
from hf_pretrain.utils.atomic import sha256_file, write_json


if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BATCH_BYTES = 1 << 20


def token_size_for(vocab_size: int) -> int:
    """Bytes of a stored token.

    Args:
        vocab_size (`int`): Tokens in the vocabulary, added ones included; the largest id is one less.

    Returns:
        `int`: 2 up to 65,536 tokens, else 4.
    """
    return 2 if vocab_size <= 1 << 16 else 4


def vocabulary_size(tokenizer: "Tokenizer") -> int:
    """Number of ids a tokenizer may give, added tokens included.

    Args:
        tokenizer (`tokenizers.Tokenizer`): The tokenizer.

    Returns:
        `int`: The largest id plus one.
    """
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def encode_documents(
    documents: Sequence[Document], tokenizer: "Tokenizer", on_progress: Callable[[int], None] | None = None
) -> Iterator[np.ndarray]:
    """Encodes documents, each closed by the end-of-text id.

    Args:
        documents (`Sequence[Document]`): The documents.
        tokenizer (`tokenizers.Tokenizer`): The tokenizer. Its post-processor is not asked: nothing is put before.
        on_progress (`Callable`, *optional*): Called with the number of documents encoded since its last call.

    Yields:
        `np.ndarray`: Ids of a document, `uint32`.
    """
    end = end_of_text_id(tokenizer)
    start = 0
    while start < len(documents):
        stop, size = start, 0
        while stop < len(documents) and (size < _BATCH_BYTES or stop == start):
            size += len(documents[stop].text)
            stop += 1
        texts = [document.text for document in documents[start:stop]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.empty(len(encoding.ids) + 1, np.uint32)
            ids[:-1] = encoding.ids
            ids[-1] = end
            yield ids
        if on_progress is not None:
            on_progress(stop - start)
        start = stop


def write_token_source(
    folder: str | Path,
    name: str,
    split: str,
    documents: Sequence[Document],
    tokenizer: "Tokenizer",
    encoded: Sequence[np.ndarray] | None = None,
    shard_tokens: int = 100_000_000,
    tokenizer_name: str = "byte-level BPE",
    seed: int = 0,
) -> dict[str, Any]:
    """Writes one source of one split.

    Args:
        folder (`str` or `Path`): `tokens/<split>/<source>`, made if missing.
        name (`str`): Name of the source.
        split (`str`): `"train"` or `"validation"`.
        documents (`Sequence[Document]`): Its documents.
        tokenizer (`tokenizers.Tokenizer`): The tokenizer.
        encoded (`Sequence[np.ndarray]`, *optional*): Ids of each document, where they are known already.
        shard_tokens (`int`, *optional*, defaults to 100000000): A shard is closed once it has this many tokens.
        tokenizer_name (`str`, *optional*): What datatrove's metadata file calls the tokenizer.
        seed (`int`, *optional*, defaults to 0): Seed of the order of documents.

    Returns:
        `dict`: The content of `source.json`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = vocabulary_size(tokenizer)
    token_size = token_size_for(vocab_size)
    order = sorted(
        range(len(documents)), key=lambda i: (stable_fraction(documents[i].id, f"order:{seed}"), documents[i].id, i)
    )
    if encoded is None:
        encoded = list(encode_documents(documents, tokenizer))
    files: list[dict[str, Any]] = []
    num_bytes = 0
    shard: _Shard | None = None
    for index in order:
        if shard is None:
            shard = _Shard(folder, len(files), token_size, tokenizer_name)
        record = provenance_record(documents[index], len(encoded[index]))
        num_bytes += record["num_bytes"]
        shard.write(encoded[index], record)
        if shard.num_tokens >= shard_tokens:
            files.append(shard.close())
            shard = None
    if shard is not None:
        files.append(shard.close())
    languages = Counter(str(document.metadata.get("language") or "unknown") for document in documents)
    licenses = {str(document.metadata.get("license") or "unknown") for document in documents}
    summary = {
        "schema": 1,
        "name": name,
        "split": split,
        "token_size": token_size,
        "vocab_size": vocab_size,
        "eos_token_id": end_of_text_id(tokenizer),
        "num_tokens": sum(file["num_tokens"] for file in files),
        "num_documents": len(documents),
        "num_bytes": num_bytes,
        "languages": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
        "licenses": sorted(licenses),
        "files": files,
    }
    write_json(folder / "source.json", summary)
    return summary


class _Shard:
    """One `.ds` file with its companions."""

    def __init__(self, folder: Path, number: int, token_size: int, tokenizer_name: str) -> None:
        self._path = folder / f"{number:05d}.ds"
        self._dtype = "<u2" if token_size == 2 else "<u4"
        self._tokens = TokenizedFile(
            str(folder),
            self._path.name,
            save_index=True,
            save_final_metadata=True,
            tokenizer_name_or_path=tokenizer_name,
            token_size=token_size,
        )
        self._provenance = ProvenanceWriter(self._path)
        self._documents = 0

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def write(self, ids: np.ndarray, record: dict[str, Any]) -> None:
        self._tokens.write_bytes(ids.astype(self._dtype).tobytes())
        self._provenance.write(record)
        self._documents += 1

    def close(self) -> dict[str, Any]:
        self._tokens.close()
        self._provenance.close()
        return {
            "name": self._path.name,
            "num_tokens": self.num_tokens,
            "num_documents": self._documents,
            "sha256": sha256_file(self._path),
        }
