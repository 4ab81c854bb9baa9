"""The layout rules of the repository, checked rather than promised."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hf_pretrain"
# A room may import from rooms on lower floors, and from itself.
FLOORS = {
    "utils": 0,
    "planning": 1,
    "models": 1,
    "losses": 1,
    "optim": 1,
    "corpus": 1,
    "data": 1,
    "kernels": 2,
    "evaluation": 2,
    "hub": 2,
    "reporting": 2,
    "callbacks": 3,
    "trainer": 4,
    "sft": 4,
    "scripts": 5,
}
MODULES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def module_name(path: Path) -> str:
    parts = ("hf_pretrain", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, top_level_only: bool = False) -> Iterator[str]:
    """Absolute dotted names imported in a file; function bodies are included unless told otherwise."""
    package = ("hf_pretrain", *path.relative_to(PACKAGE).parts[:-1])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            yield ".".join(part for part in (base, node.module or "") if part)


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room == "__init__.py":
        return
    for name in imports_of(path):
        if name.startswith("hf_pretrain."):
            other = name.split(".")[1]
            if other.startswith("__"):
                continue
            assert other == room or FLOORS[other] < FLOORS[room], f"{room}/ may not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_siblings_are_imported_not_the_room(path: Path) -> None:
    rooms = {f"hf_pretrain.{room}" for room in FLOORS}
    allowed = {"hf_pretrain.models"} if path.parts[-2] not in ("models", "strata") else set()
    assert not (set(imports_of(path)) & rooms) - allowed, "import the module, not the room's __init__"


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_files_stay_readable(path: Path) -> None:
    limit = 700 if path.name.startswith("modeling_") else 600
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 800


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/__init__.py")), ids=lambda path: path.parts[-2])
def test_room_manuals_hold_no_code(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a room's __init__ is its manual"
    if path.parts[-2] != "models":  # This one registers the family with the Auto classes.
        assert len(tree.body) == 1, "a room's __init__ holds its manual and no code"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("models/*/*.py")), ids=lambda path: path.name)
def test_model_files_travel_to_the_hub(path: Path) -> None:
    deep = [
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level > 1
    ]
    own = module_name(path.parent / "__init__.py")
    strangers = [name for name in imports_of(path) if name.startswith("hf_pretrain") and not name.startswith(own)]
    assert not deep and not strangers, f"only `from .sibling import` ships with push_to_hub: {deep + strangers}"
    third = {name.split(".")[0] for name in imports_of(path)} - {"hf_pretrain"} - set(sys.stdlib_module_names)
    assert third <= {"torch", "transformers", "huggingface_hub"}


def test_there_is_no_import_cycle() -> None:
    known = {module_name(path) for path in MODULES}
    graph = {
        module_name(path): {name for name in imports_of(path, top_level_only=True) if name in known}
        for path in MODULES
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("scripts/*.py")), ids=lambda path: path.name)
def test_scripts_import_nothing_heavy_at_the_top(path: Path) -> None:
    third = {name.split(".")[0] for name in imports_of(path, top_level_only=True)} - set(sys.stdlib_module_names)
    assert third <= {"hf_pretrain"}


@pytest.mark.parametrize("room", ["utils", "planning"])
def test_light_rooms_use_the_standard_library(room: str) -> None:
    for path in PACKAGE.glob(f"{room}/*.py"):
        third = {name.split(".")[0] for name in imports_of(path, top_level_only=True)} - set(sys.stdlib_module_names)
        assert third <= {"hf_pretrain"}, f"{path.name} imports {third}"


@pytest.mark.parametrize(
    "statement",
    [
        "import hf_pretrain",
        "import hf_pretrain.planning.compute, hf_pretrain.planning.counting, hf_pretrain.planning.hardware",
        "import hf_pretrain.scripts.cli as cli; cli.main(['--help'])",
        "import hf_pretrain.scripts.run as run\ntry: run.main(['--help'])\nexcept SystemExit: pass",
        "import hf_pretrain.scripts.pretrain as verb\ntry: verb.main(['--help'])\nexcept SystemExit: pass",
        "import hf_pretrain.scripts.corpus as verb\ntry: verb.main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_light_things_load_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nsys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'datatrove')))"
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


def test_lazy_names_are_all_there() -> None:
    import hf_pretrain

    for name in hf_pretrain.__all__:
        assert getattr(hf_pretrain, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Strato'"):
        _ = hf_pretrain.Strato
