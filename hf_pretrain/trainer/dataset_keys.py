"""The key `datasets` of a training stage, as TRL writes it, and the names that the alignment handbook uses.

datasets:
  - {path: 1_corpus, name: web, weight: 0.7}           # a source of a corpus stage
  - {path: data/code, split: train, weight: 0.3, max_epochs: 2}   # a folder of `save_to_disk` with `input_ids`

`dataset_mixer: {path: weight}` and `dataset_mixture: {datasets: [{id, config, split, weight}]}` mean the same.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.data.token_source import SOURCE_FILE, TokenSource
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.strict import build


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DATASET_KEYS = ("datasets", "dataset_mixer", "dataset_mixture", "dataset_weights", "dataset_configs")
_ALIASES = {"id": "path", "config": "name", "fraction": "weight"}


@dataclass(frozen=True)
class DatasetEntry:
    """One source of a stage's training data.

    Args:
        path (`str`): A corpus stage or its folder, the folder of a source (with `source.json`), a folder that
            `Dataset.save_to_disk` wrote, or an `.arrow` file.
        name (`str`, *optional*): Which source of a corpus; elsewhere what the source is called, by default as its
            folder.
        split (`str`, *optional*, defaults to `"train"`): Which split, where `path` holds several.
        weight (`float`, *optional*): Share of the run's tokens; give it to all entries or to none.
        max_epochs (`float`, *optional*): How often it may be read; by default the stage's `max_epochs`.
    """

    path: str
    name: str | None = None
    split: str = "train"
    weight: float | None = None
    max_epochs: float | None = None

    @property
    def source_name(self) -> str:
        """What the source is called."""
        path = Path(self.path)
        return self.name or (path.stem if path.suffix == ".arrow" else path.name)


def read_dataset_keys(config: Mapping[str, Any], where: str) -> list[DatasetEntry]:
    """Reads the keys that name datasets.

    Args:
        config (`Mapping[str, Any]`): All keys of the stage's file.
        where (`str`): The file, for messages.

    Returns:
        `list[DatasetEntry]`: One a source; empty where the file names none.

    Raises:
        UserError: If a key is unknown, two of them contradict each other, or two sources have one name.
    """
    given = [key for key in ("datasets", "dataset_mixer", "dataset_mixture") if config.get(key) is not None]
    if len(given) > 1:
        raise UserError(f"{where}: {given[0]} and {given[1]} both name the datasets; keep one")
    listed = {key: config[key] for key in ("dataset_weights", "dataset_configs") if config.get(key) is not None}
    if not given:
        if listed:
            raise UserError(f"{where}: {min(listed)} needs `datasets`, the list it belongs to")
        return []
    raw, label = config[given[0]], f"{where}: {given[0]}"
    if given[0] == "dataset_mixture":
        raw = _of_mixture(raw, label)
    elif given[0] == "dataset_mixer":
        if not isinstance(raw, Mapping) or not raw:
            raise UserError(f"{label} = {raw!r}; a mapping of paths to weights is expected")
        raw = [{"path": path, "weight": weight} for path, weight in raw.items()]
    if not isinstance(raw, list) or not raw:
        raise UserError(f"{label} = {raw!r}; a list of entries with `path` is expected")
    raw = [_plain_keys(entry, f"{label}[{number}]") for number, entry in enumerate(raw)]
    for key, target in (("dataset_weights", "weight"), ("dataset_configs", "name")):
        if key in listed:
            _spread(raw, listed[key], key, target, where)
    entries = [build(DatasetEntry, entry, f"{label}[{number}]") for number, entry in enumerate(raw)]
    names = [entry.source_name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{label}: two sources are called {name!r}; give each its own `name`")
    for number, entry in enumerate(entries):
        cap = entry.max_epochs
        if cap is not None and not cap > 0:
            raise UserError(f"{label}[{number}].max_epochs = {cap!r}; allowed are numbers above 0")
    weighted = [entry.weight is not None for entry in entries]
    if any(weighted) and not all(weighted):
        missing = names[weighted.index(False)]
        raise UserError(f"{label}: {missing!r} has no weight and others have; give all of them one, or none")
    return entries


def stage_settings(entries: list[DatasetEntry], config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Turns the entries into the stage's other keys.

    Args:
        entries (`list[DatasetEntry]`): The datasets.
        config (`Mapping[str, Any]`): All keys of the stage's file.
        where (`str`): The file, for messages.

    Returns:
        `dict[str, Any]`: `mixture` and `max_epochs`, where the entries give them.

    Raises:
        UserError: If the file gives them a second time.
    """
    found: dict[str, Any] = {}
    if entries and entries[0].weight is not None:
        if config.get("mixture") is not None:
            raise UserError(f"{where}: mixture and the weights of datasets both give shares; keep one of the two")
        found["mixture"] = {entry.source_name: entry.weight for entry in entries}
    if any(entry.max_epochs is not None for entry in entries):
        common = config.get("max_epochs", 4.0)
        if isinstance(common, Mapping):
            raise UserError(f"{where}: max_epochs by source and max_epochs of datasets; keep one of the two")
        found["max_epochs"] = {
            entry.source_name: common if entry.max_epochs is None else entry.max_epochs for entry in entries
        }
    return found


def open_entry(entry: DatasetEntry, tokenizer: "PreTrainedTokenizerBase | None" = None) -> TokenSource:
    """Opens one source.

    Args:
        entry (`DatasetEntry`): Its entry, `path` resolved.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): Of the stage; ids and document ends of a dataset are checked
            with it.

    Returns:
        `TokenSource`: The source.

    Raises:
        UserError: If there is nothing of that name, or it holds no tokens.
    """
    path = Path(entry.path)
    if not path.exists():
        raise UserError(
            f"datasets: path = {entry.path}; there is no such stage, folder or file. A dataset of the Hub has to be "
            "tokenized and saved first (Dataset.map, Dataset.save_to_disk)"
        )
    if (path / "tokens").is_dir():
        held = path / "tokens" / entry.split
        names = [item.name for item in sorted(held.iterdir())] if held.is_dir() else []
        if entry.name not in names:
            if entry.name is None:
                raise UserError(f"datasets: {entry.path} holds several sources ({', '.join(names)}); give a `name`")
            raise UserError(f"datasets: {entry.path}: {unknown_name_message('source', entry.name, names)}")
        return TokenSource.open(held / entry.name, entry.name)
    if (path / "dataset_dict.json").is_file():
        splits = [item.name for item in sorted(path.iterdir()) if item.is_dir()]
        if entry.split not in splits:
            raise UserError(f"datasets: {entry.path}: {unknown_name_message('split', entry.split, splits)}")
        path = path / entry.split
    if (path / SOURCE_FILE).is_file() or tokenizer is None:
        return TokenSource.open(path, entry.source_name)
    return TokenSource.open(path, entry.source_name, len(tokenizer), tokenizer.eos_token_id)


def _of_mixture(raw: Any, label: str) -> Any:
    if not isinstance(raw, Mapping):
        raise UserError(f"{label} = {raw!r}; a mapping with `datasets` is expected")
    for key in raw:
        if key != "datasets":
            raise UserError(f"{label}: {unknown_name_message('key', key, ['datasets'])}")
    return raw.get("datasets")


def _plain_keys(entry: Any, label: str) -> dict[str, Any]:
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, Mapping):
        raise UserError(f"{label} = {entry!r}; a path, or a mapping with `path` is expected")
    found: dict[str, Any] = {}
    for key, value in entry.items():
        name = _ALIASES.get(key, key)
        if name in found:
            raise UserError(f"{label}: {key} and {name} mean the same; keep one")
        found[name] = value
    known = [item.name for item in dataclasses.fields(DatasetEntry)]
    for key in found:
        if key not in known:
            raise UserError(f"{label}: {unknown_name_message('key', key, [*known, *_ALIASES])}")
    return found


def _spread(raw: list[dict[str, Any]], values: Any, key: str, target: str, where: str) -> None:
    """Gives each entry its value of a list of its own, or of a mapping by name or path."""
    if isinstance(values, Mapping):
        known = [entry.get("name") or entry.get("path") for entry in raw]
        for name in values:
            if name not in known:
                raise UserError(f"{where}: {key}: {unknown_name_message('dataset', name, known)}")
        values = [values.get(name) for name in known]
    if not isinstance(values, list) or len(values) != len(raw):
        raise UserError(f"{where}: {key} = {values!r}; a list of {len(raw)} values is expected, one a dataset")
    for entry, value in zip(raw, values, strict=True):
        if entry.get(target) is not None:
            raise UserError(f"{where}: {key} and `{target}` of a dataset both say the same; keep one")
        entry[target] = value
