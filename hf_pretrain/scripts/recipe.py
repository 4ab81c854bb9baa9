"""Recipes: a folder a run, a numbered YAML file a stage.

A stage file says what it is (`stage: pretrain`) and in which run folder it works (`run_dir: runs/mine`); everything
else belongs to the stage. A value that names another stage of the recipe (`init_from: 2_pretrain`) is a dependency.
"""

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


# What `stage:` may say, and the module that does it.
STAGE_MODULES = {
    "corpus": "hf_pretrain.scripts.corpus",
    "pretrain": "hf_pretrain.scripts.pretrain",
    "sft": "hf_pretrain.scripts.sft",
    "evaluate": "hf_pretrain.scripts.evaluate",
    "push": "hf_pretrain.scripts.push",
}
# Keys whose values name stages.
_REFERENCES = ("corpus", "init_from", "model", "models", "untrained_from")
_STAGE_FILE = re.compile(r"^\d+_[A-Za-z0-9_]+\.ya?ml$")


@dataclass(frozen=True)
class StageSpec:
    """One stage of a recipe, as it is to be run.

    Args:
        name (`str`): Stem of the file, e.g. `"2_pretrain"`.
        kind (`str`): One of `corpus`, `pretrain`, `sft`, `evaluate`, `push`.
        config (`dict`): What the file says, without `stage` and `run_dir`.
        run_dir (`Path`): The run folder.
        path (`Path`): The file.
        recipe_stages (`list[str]`, *optional*): Names of all stages of the recipe, in order.
    """

    name: str
    kind: str
    config: dict[str, Any]
    run_dir: Path
    path: Path
    recipe_stages: list[str] = field(default_factory=list)

    @property
    def stage_dir(self) -> Path:
        """The stage's own folder inside the run folder."""
        return self.run_dir / self.name

    @property
    def recipe_name(self) -> str:
        """Name of the recipe: the folder the stage file lies in."""
        return self.path.resolve().parent.name

    def resolve(self, reference: str) -> Path | str:
        """Finds what a reference means.

        Args:
            reference (`str`): A stage name, a path, or the name of a repository on the Hub.

        Returns:
            `Path` or `str`: The stage's folder, else an existing path, else the text as it is.

        Raises:
            UserError: If it is nothing of these but a stage's name with a typing error.
        """
        if reference in self.recipe_stages or (self.run_dir / reference / "stage.json").exists():
            return self.run_dir / reference
        path = Path(reference).expanduser()
        if path.exists():
            return path
        if difflib.get_close_matches(reference, self.recipe_stages, n=1, cutoff=0.75):
            # Nobody means a repository on the Hub whose name is a letter away from a stage's.
            raise UserError(f"{self.path}: {unknown_name_message('stage', reference, self.recipe_stages)}")
        return reference

    def check_references(self) -> None:
        """Looks at the names of stages, folders and repositories that the file gives; none of them needs to exist.

        Raises:
            UserError: If one is a stage's name with a typing error.
        """
        for key in _REFERENCES:
            value = self.config.get(key)
            for reference in value if isinstance(value, list) else [value]:
                if isinstance(reference, str):
                    self.resolve(reference)

    def dependencies(self) -> list[str]:
        """Names of the stages this one builds on: those it mentions, and for a push all before it.

        Returns:
            `list[str]`: In the order of the recipe.
        """
        mentioned = set(_strings(self.config))
        if self.kind == "push" and self.name in self.recipe_stages:
            # The card tells of the whole run, so it is out of date when any stage has run again.
            mentioned.update(self.recipe_stages[: self.recipe_stages.index(self.name)])
        return [name for name in self.recipe_stages if name in mentioned and name != self.name]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _strings(item)]
    return []


def load_stage(
    path: str | os.PathLike,
    run_dir: str | os.PathLike | None = None,
    overrides: list[str] | None = None,
    recipe_stages: list[str] | None = None,
) -> StageSpec:
    """Reads one stage file.

    Args:
        path (`str` or `os.PathLike`): The YAML file.
        run_dir (`str` or `os.PathLike`, *optional*): Overrides the file's `run_dir`.
        overrides (`list[str]`, *optional*): `key.sub=value` settings; values are YAML.
        recipe_stages (`list[str]`, *optional*): Names of the recipe's stages; by default the files beside it.

    Returns:
        `StageSpec`: The stage.

    Raises:
        UserError: If the file cannot be read, is no mapping, lacks `stage` or a run folder, or misspells a stage.
    """
    path = Path(path)
    config = read_yaml(path)
    for setting in overrides or []:
        _apply_override(config, setting)
    kind = config.pop("stage", None)
    if kind not in STAGE_MODULES:
        hint = unknown_name_message("stage", str(kind), STAGE_MODULES) if kind else "the key 'stage' is missing."
        raise UserError(f"{path}: {hint} A stage file says what it is, e.g. `stage: pretrain`.")
    own_folder = config.pop("run_dir", None)
    folder = own_folder if run_dir is None else run_dir
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise UserError(f"{path}: run_dir = {folder!r}; name the run folder there or with --run-dir.")
    if recipe_stages is None:
        recipe_stages = [file.stem for file in stage_files(path.parent)]
    spec = StageSpec(path.stem, kind, config, Path(folder).expanduser(), path, recipe_stages)
    spec.check_references()
    return spec


def stage_files(folder: str | os.PathLike) -> list[Path]:
    """Lists the stage files of a recipe folder.

    Args:
        folder (`str` or `os.PathLike`): The recipe folder.

    Returns:
        `list[Path]`: The files named `<number>_<name>.yaml`, in the order of their numbers.
    """
    files = [file for file in Path(folder).iterdir() if _STAGE_FILE.match(file.name)] if Path(folder).is_dir() else []
    return sorted(files, key=lambda file: (int(file.name.partition("_")[0]), file.name))


def load_recipe(
    folder: str | os.PathLike, run_dir: str | os.PathLike | None = None, overrides: list[str] | None = None
) -> list[StageSpec]:
    """Reads a recipe folder.

    Args:
        folder (`str` or `os.PathLike`): The recipe folder.
        run_dir (`str` or `os.PathLike`, *optional*): Overrides the run folder of every stage.
        overrides (`list[str]`, *optional*): `STAGE.key.sub=value` settings.

    Returns:
        `list[StageSpec]`: The stages in order.

    Raises:
        UserError: If there is no stage, two stages disagree on the run folder, or an override names no stage.
    """
    folder = Path(folder)
    files = stage_files(folder)
    if not files:
        what = "has no stage files" if folder.is_dir() else "is no folder"
        raise UserError(f"recipe = {folder}; it {what}: a recipe is a folder of files like 1_corpus.yaml.")
    names = [file.stem for file in files]
    settings: dict[str, list[str]] = {name: [] for name in names}
    for setting in overrides or []:
        stage, dot, rest = setting.partition(".")
        if not dot or stage not in settings:
            raise UserError(f"--set {setting}: {unknown_name_message('stage', stage, names)} Write STAGE.key=value.")
        settings[stage].append(rest)
    specs = [load_stage(file, run_dir, settings[file.stem], names) for file in files]
    folders = {spec.run_dir for spec in specs}
    if len(folders) > 1:
        shown = ", ".join(sorted(map(str, folders)))
        raise UserError(f"{folder}: the stages name different run folders ({shown}); give them the same run_dir.")
    for position, spec in enumerate(specs):
        later = [name for name in spec.dependencies() if name in names[position:]]
        if later:
            raise UserError(
                f"{spec.path}: it needs {later[0]}, which comes after it; change the numbers of the files."
            )
    return specs


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file that is a mapping; safely, and without keys given twice.

    Args:
        path (`Path`): The file.

    Returns:
        `dict[str, Any]`: Its keys.

    Raises:
        UserError: If it cannot be read, or is something else.
    """
    import yaml

    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_strict_loader())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; give the path of a stage file.") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no text file; give the path of a stage file (YAML).") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UserError(f"{path} is no stage file: it is nested too deeply.") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{path}: a stage file is a mapping of keys to values.")
    return value


def _strict_loader() -> type:
    """A safe YAML loader that refuses a key given twice, where YAML would silently take the last."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def construct_mapping(loader: Any, node: Any) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            try:
                twice = key in mapping
            except TypeError:
                raise yaml.YAMLError(f"a key must be plain text, line {key_node.start_mark.line + 1}") from None
            if twice:
                raise yaml.YAMLError(f"the key {key!r} is given twice, line {key_node.start_mark.line + 1}")
            mapping[key] = loader.construct_object(value_node, deep=True)
        return mapping

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)
    return Loader


def _apply_override(config: dict[str, Any], setting: str) -> None:
    import yaml

    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UserError(f"--set {setting}: write key=value, or key.sub=value for a nested key.")
    try:
        value = yaml.load(text, Loader=_strict_loader())
    except yaml.YAMLError as error:
        raise UserError(f"--set {setting}: the value is no valid YAML.") from error
    *parents, last = key.split(".")
    target = config
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"--set {setting}: '{parent}' is no mapping, so it has no key '{last}'.")
    target[last] = value
