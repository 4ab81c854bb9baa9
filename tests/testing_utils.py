"""What tests of several rooms share: token folders in the shard format, a tokenizer in memory."""

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def random_documents(
    count: int, vocab_size: int = 64, seed: int = 0, length: tuple[int, int] = (5, 60), eos_token_id: int = 0
) -> list[list[int]]:
    """Makes documents of seeded random ids, each ended by the EOS id."""
    generator = random.Random(seed)
    return [
        [generator.randrange(1, vocab_size) for _ in range(generator.randint(*length))] + [eos_token_id]
        for _ in range(count)
    ]


def markov_documents(
    count: int, vocab_size: int = 64, seed: int = 0, length: tuple[int, int] = (20, 90), eos_token_id: int = 0
) -> list[list[int]]:
    """Makes documents a model can learn: each id is followed by one of three ids."""
    generator = random.Random(seed)
    documents = []
    for _ in range(count):
        token = generator.randrange(1, vocab_size)
        document = [token]
        for _ in range(generator.randint(*length)):
            token = 1 + (token * 7 + generator.choice((1, 5, 11))) % (vocab_size - 1)
            document.append(token)
        documents.append([*document, eos_token_id])
    return documents


def write_token_folder(
    path: str | Path,
    name: str,
    documents: Sequence[Sequence[int]],
    vocab_size: int = 64,
    split: str = "train",
    eos_token_id: int = 0,
    token_size: int = 2,
    documents_per_file: int | None = None,
) -> Path:
    """Writes documents as a source folder of token shards.

    Args:
        path (`str` or `Path`): The folder of the source itself; made if missing.
        name (`str`): Name of the source.
        documents (`Sequence[Sequence[int]]`): Token ids, EOS included.
        vocab_size (`int`, *optional*, defaults to 64): Number of ids of the tokenizer.
        split (`str`, *optional*, defaults to `"train"`): Written to `source.json`.
        eos_token_id (`int`, *optional*, defaults to 0): Written to `source.json`.
        token_size (`int`, *optional*, defaults to 2): Bytes of a token.
        documents_per_file (`int`, *optional*): Cuts the source into shards of so many documents.

    Returns:
        `Path`: The folder.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    size = documents_per_file or max(len(documents), 1)
    files, total_bytes = [], 0
    for number, first in enumerate(range(0, max(len(documents), 1), size)):
        part = documents[first : first + size]
        shard = folder / f"{number:05d}.ds"
        tokens = np.array([token for document in part for token in document], dtype=f"<u{token_size}")
        shard.write_bytes(tokens.tobytes())
        ends = np.cumsum([len(document) for document in part], dtype=np.uint64).astype("<u8")
        Path(f"{shard}.index").write_bytes(ends.tobytes())
        lines = []
        for row, document in enumerate(part):
            num_bytes = 4 * len(document)
            total_bytes += num_bytes
            record = {
                "id": f"{name}/{first + row}",
                "source": name,
                "url": f"https://example.org/{name}/{first + row}",
                "language": "en",
                "file": "raw.jsonl",
                "row": first + row,
                "num_bytes": num_bytes,
                "num_tokens": len(document),
                "metadata": {},
            }
            lines.append(json.dumps(record) + "\n")
        Path(f"{shard}.docs.jsonl").write_text("".join(lines), encoding="utf-8")
        Path(f"{shard}.docs.index").write_bytes(
            np.cumsum([len(line.encode()) for line in lines], dtype=np.uint64).astype("<u8").tobytes()
        )
        files.append(
            {
                "name": shard.name,
                "num_tokens": len(tokens),
                "num_documents": len(part),
                "sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
            }
        )
    description = {
        "schema": 1,
        "name": name,
        "split": split,
        "token_size": token_size,
        "vocab_size": vocab_size,
        "eos_token_id": eos_token_id,
        "num_tokens": sum(file["num_tokens"] for file in files),
        "num_documents": len(documents),
        "num_bytes": total_bytes,
        "languages": {"en": len(documents)},
        "licenses": ["CC0-1.0"],
        "files": files,
    }
    (folder / "source.json").write_text(json.dumps(description), encoding="utf-8")
    return folder


def tiny_tokenizer(vocab_size: int = 64):
    """Makes a word-level tokenizer without a download: `<eos>` is id 0, `<pad>` 1, then `w2`, `w3`, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<eos>": 0, "<pad>": 1, **{f"w{index}": index for index in range(2, vocab_size)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


def write_corpus_stage(run_dir: str | Path, sources: Sequence[str] = ("web", "books"), documents: int = 150) -> Path:
    """Writes the folder a corpus stage leaves: tokenizer, train and validation tokens of some sources.

    Args:
        run_dir (`str` or `Path`): The run folder; the stage is `1_corpus` in it, with a manifest that says done.
        sources (`Sequence[str]`, *optional*, defaults to `("web", "books")`): Names of the sources.
        documents (`int`, *optional*, defaults to 150): Training documents of each source.

    Returns:
        `Path`: The stage's folder.
    """
    from hf_pretrain.utils.manifest import StepManifest

    stage = Path(run_dir) / "1_corpus"
    for seed, name in enumerate(sources):
        for split, count in (("train", documents), ("validation", 12)):
            folder = stage / "tokens" / split / name
            write_token_folder(
                folder, name, markov_documents(count, seed=seed + 100 * (split != "train")), split=split
            )
    tiny_tokenizer().save_pretrained(stage / "tokenizer")
    StepManifest(stage / "stage.json", "0" * 16).start().finish(1.0)
    return stage
