"""What the documents promise: docstrings, recipes, commands and cards are checked like code."""

import ast
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hf_pretrain"
MODULES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted(path.parent for path in (ROOT / "recipes").glob("*/1_*.yaml"))
CARDS = sorted((ROOT / "model_cards").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "recipes").rglob("*.md")), *CARDS]


def public_definitions(path: Path) -> list[tuple[str, ast.AST]]:
    """Public classes and functions of a module, and the public methods of its classes."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            found.append((node.name, node))
            if isinstance(node, ast.ClassDef):
                found += [
                    (f"{node.name}.{item.name}", item)
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and not _overrides(item)
                ]
    return found


def _overrides(node: ast.FunctionDef) -> bool:
    """Methods whose contract is somebody else's: events of a callback, setters, `validate_*` of a config."""
    setter = any(isinstance(item, ast.Attribute) and item.attr == "setter" for item in node.decorator_list)
    return setter or node.name.startswith(("on_", "validate_"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_public_name_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "the module has no docstring"
    bare = [name for name, node in public_definitions(path) if not ast.get_docstring(node)]
    assert not bare


def test_every_config_field_is_read_somewhere() -> None:
    """A field that nothing reads is a promise nobody keeps."""
    reads: dict[str, set[str]] = {}
    configs: list[tuple[str, str]] = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        spans = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "Arguments")):
                spans.append((node.name, node.lineno, node.end_lineno))
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        if "ClassVar" not in ast.dump(item.annotation) and not item.target.id.startswith("_"):
                            configs.append((node.name, item.target.id))
        for node in ast.walk(tree):
            name = None
            if isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                name = node.value  # getattr(config, "name") and tables of field names
            if name is None:
                continue
            inside = next((owner for owner, first, last in spans if first <= node.lineno <= last), "")
            reads.setdefault(name, set()).add(inside)
    # Fields that the installed stack reads for us.
    stack = {"model_type", "base_model_tp_plan", "base_model_ep_plan", "base_model_pp_plan", "base_model_fsdp_plan"}
    stack |= {"bos_token_id", "eos_token_id", "pad_token_id", "attribute_map", "keys_to_ignore_at_inference"}
    stack |= {
        "initializer_range",
        "tie_word_embeddings",
        "max_position_embeddings",
        "output_router_logits",
        "use_cache",
    }
    unread = [
        f"{owner}.{name}" for owner, name in configs if name not in stack and not reads.get(name, set()) - {owner}
    ]
    assert not unread


@pytest.mark.parametrize("folder", RECIPES, ids=lambda path: path.name)
def test_recipes_pass_the_real_parser(folder: Path) -> None:
    from hf_pretrain.scripts.execution import stage_module
    from hf_pretrain.scripts.recipe import load_recipe

    for spec in load_recipe(folder):
        stage_module(spec).check(spec)


@pytest.mark.parametrize("folder", RECIPES, ids=lambda path: path.name)
def test_recipes_are_explained(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    for file in folder.glob("[0-9]*.yaml"):
        assert file.name in text, f"README.md of {folder.name} does not mention {file.name}"


def commands_in(path: Path) -> list[str]:
    """Commands in the fenced shell blocks of a document."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.exists()], ids=lambda path: path.name)
def test_commands_in_documents_exist(document: Path) -> None:
    from hf_pretrain.scripts.cli import VERBS

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for command in commands_in(document):
        words = shlex.split(command.partition(" #")[0])
        if words[0].endswith("hf-pretrain"):
            assert words[1] in VERBS or words[1].startswith("-"), command
            if words[1] in VERBS:
                known = _known_options(words[1])
                unknown = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
                assert set(unknown) <= known, command
        elif words[0] == "make":
            assert all(word in targets or "=" in word for word in words[1:]), command
        for word in words:
            if word.startswith(("recipes/", "tests/")):
                assert (ROOT / word).exists(), command


def _known_options(verb: str) -> set[str]:
    import contextlib
    import importlib
    import io

    from hf_pretrain.scripts.cli import VERBS

    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        importlib.import_module(VERBS[verb][0]).main(["--help"])
    return set(re.findall(r"--[a-z][a-z-]*", output.getvalue()))


@pytest.mark.parametrize("card", [card for card in CARDS if card.name != "README.md"], ids=lambda path: path.name)
def test_cards_have_valid_headers(card: Path) -> None:
    from huggingface_hub import ModelCard

    data = ModelCard(card.read_text(encoding="utf-8"), ignore_metadata_errors=False).data.to_dict()
    assert data["license"] and data["language"] and data["pipeline_tag"] == "text-generation"
    assert all(value is not None for value in data.values())


@pytest.mark.parametrize("card", [card for card in CARDS if card.name != "README.md"], ids=lambda path: path.name)
def test_cards_show_only_numbers_of_their_run(card: Path) -> None:
    from hf_pretrain.hub.model_card import numbers_not_in_facts

    facts = json.loads(card.with_suffix(".facts.json").read_text(encoding="utf-8"))
    assert numbers_not_in_facts(card.read_text(encoding="utf-8"), facts) == []


def test_the_readme_shows_only_numbers_of_a_run() -> None:
    from hf_pretrain.hub.model_card import numbers_not_in_facts

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    claim = " ".join(line for line in text.splitlines() if line.startswith("> "))
    facts = json.loads((ROOT / "model_cards" / "tiny_cpu.facts.json").read_text(encoding="utf-8"))
    assert claim and numbers_not_in_facts(claim, facts) == []


def test_pretrain_config_stays_small() -> None:
    from transformers import TrainingArguments

    from hf_pretrain.trainer.pretrain_config import PretrainConfig

    own = {field.name for field in dataclasses.fields(PretrainConfig)}
    own -= {field.name for field in dataclasses.fields(TrainingArguments)}
    assert len(own) <= 40


def test_no_machine_is_named() -> None:
    """No path of one machine and no registry host in what we publish."""
    pattern = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:work|root|home/[a-z]+)/")
    for path in [*MODULES, *DOCUMENTS, ROOT / "setup.cfg", ROOT / "Makefile", ROOT / "constraints.txt"]:
        if path.exists():
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if pattern.search(line)]
            assert not found, f"{path.name}: {found[:3]}"
