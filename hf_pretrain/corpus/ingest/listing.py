"""Which files a source consists of; the order in which tasks share them."""

from __future__ import annotations

import glob
from pathlib import Path

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import require


# Histories of version control hold no source.
_HIDDEN = frozenset((".git", ".hg", ".svn"))
_PACKED = ("", ".gz", ".bz2", ".xz")
SUFFIXES = {
    "warc": (".warc", ".warc.gz"),
    "wet": (".wet", ".wet.gz", ".warc.wet", ".warc.wet.gz"),
    "wikipedia": tuple(".xml" + packed for packed in _PACKED),
    "arxiv": (".tar.gz", ".tgz", ".gz", ".tar", ".tex"),
    "stackexchange": tuple("Posts.xml" + packed for packed in _PACKED),
    "code": (),
    "books": (".txt", ".txt.gz", ".epub"),
    "problems": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet"),
    "jsonl": tuple(name + packed for name in (".jsonl", ".ndjson") for packed in _PACKED),
    "parquet": (".parquet",),
    "dataset": (".arrow",),
    "text": (".txt", ".txt.gz", ".md", ".rst"),
}

# Parsers by kind and the extra that brings them; asked for before the first step and not after an hour of others.
_PARSERS = {
    "warc": ("corpus", "warcio"),
    "wet": ("corpus", "warcio"),
    "wikipedia": ("sources", "mwparserfromhell", "defusedxml"),
    "stackexchange": ("sources", "defusedxml"),
    "books": ("sources", "defusedxml"),
}


def list_files(config: SourceConfig) -> list[Path]:
    """
    Files of a source, sorted; the order in which tasks share them.

    Args:
        config (`SourceConfig`): A source that is not of kind `"sample"`.

    Returns:
        `list[Path]`: absolute paths.

    Raises:
        UserError: If there are none.
        MissingPackageError: If the kind needs a package that is not installed.
    """
    extra, *modules = _PARSERS.get(config.kind, ("sources",))
    if config.kind == "arxiv" and config.kind_options.output == "text":
        modules = ["pylatexenc"]
    for module in modules:
        require(module, extra, f"source '{config.name}' of kind {config.kind}")
    path = Path(config.path).expanduser()
    suffixes = SUFFIXES[config.kind]
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
        if config.kind == "code":
            found = [file for file in found if not _HIDDEN & set(file.relative_to(path).parts[:-1])]
        else:
            found = [file for file in found if file.name.endswith(suffixes)]
        if config.kind == "dataset":
            found = [file for file in found if not file.name.startswith("cache-")]
        wanted = f"a file that ends in {', '.join(suffixes)}" if suffixes else "a file"
    elif path.is_file():
        found, wanted = [path], ""
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        wanted = "a file, a folder or a glob that matches"
    if not found:
        raise UserError(f"source '{config.name}': path = {config.path!r} has no file; it needs {wanted}")
    return sorted(file.absolute() for file in found)
