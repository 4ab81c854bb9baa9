"""Stage files are read strictly; overrides and references mean what they say."""

from pathlib import Path

import pytest

from hf_pretrain.scripts.recipe import load_recipe, load_stage, stage_files
from hf_pretrain.utils.errors import UserError


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    write(folder, "1_corpus.yaml", f"stage: corpus\nrun_dir: {tmp_path}/run\nsources: []\n")
    write(folder, "2_pretrain.yaml", f"stage: pretrain\nrun_dir: {tmp_path}/run\ncorpus: 1_corpus\nmodel: {{a: 1}}\n")
    write(folder, "10_push.yaml", f"stage: push\nrun_dir: {tmp_path}/run\nmodel: 2_pretrain\n")
    write(folder, "README.md", "x")
    return folder


def test_stages_come_in_the_order_of_their_numbers(recipe: Path) -> None:
    assert [file.stem for file in stage_files(recipe)] == ["1_corpus", "2_pretrain", "10_push"]
    specs = load_recipe(recipe)
    assert [spec.kind for spec in specs] == ["corpus", "pretrain", "push"]
    assert specs[1].dependencies() == ["1_corpus"] and specs[1].recipe_name == "mine"
    assert specs[2].dependencies() == ["1_corpus", "2_pretrain"]  # A card tells of the whole run.
    assert specs[1].resolve("1_corpus") == specs[1].run_dir / "1_corpus"
    assert specs[1].resolve("org/model") == "org/model"
    assert specs[1].resolve(str(recipe)) == recipe
    assert specs[1].resolve("gpt2") == "gpt2"


@pytest.mark.parametrize(
    "setting", ["2_pretrain.corpus=1_corups", "10_push.model=2_pretrane", "10_push.models=[2_pretran]"]
)
def test_a_misspelt_stage_is_found_before_anything_runs(recipe: Path, setting: str) -> None:
    with pytest.raises(UserError, match="Unknown stage .* Did you mean '[12]_(corpus|pretrain)'"):
        load_recipe(recipe, overrides=[setting])


def test_overrides_and_run_folder(recipe: Path, tmp_path: Path) -> None:
    specs = load_recipe(recipe, tmp_path / "other", ["2_pretrain.model.a=2", "2_pretrain.new.key=[1, x]"])
    assert specs[1].config["model"] == {"a": 2} and specs[1].config["new"] == {"key": [1, "x"]}
    assert {spec.run_dir for spec in specs} == {tmp_path / "other"}


@pytest.mark.parametrize(
    "setting, message",
    [
        ("3_sft.x=1", "Unknown stage '3_sft'"),
        ("nothing", "Write STAGE.key=value"),
        ("2_pretrain.model", "write key=value"),
        ("2_pretrain.corpus.x=1", "'corpus' is no mapping"),
        ("2_pretrain.model.a=[", "no valid YAML"),
    ],
)
def test_bad_overrides(recipe: Path, setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(recipe, None, [setting])


@pytest.mark.parametrize(
    "text, message",
    [
        ("stage: pretain\nrun_dir: x\n", "Unknown stage 'pretain'. Did you mean 'pretrain'"),
        ("run_dir: x\n", "the key 'stage' is missing"),
        ("stage: pretrain\n", "name the run folder"),
        ("stage: pretrain\nrun_dir: 3\n", "run_dir = 3"),
        ("- a\n", "a mapping of keys to values"),
        ("stage: [\n", "no valid YAML"),
        ("stage: pretrain\nstage: sft\nrun_dir: x\n", "given twice, line 2"),
        ("stage: pretrain\nrun_dir: x\nmodel: {a: 1, a: 2}\n", "'a' is given twice"),
        ("stage: !!python/object/apply:os.system ['true']\n", "no valid YAML"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    ],
)
def test_bad_stage_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_stage(write(tmp_path, "1_x.yaml", text))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_stage(tmp_path / "1_x.yaml")
    with pytest.raises(UserError, match="is no text file"):
        load_stage(tmp_path)
    with pytest.raises(UserError, match="has no stage files"):
        load_recipe(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        load_recipe(tmp_path / "nowhere")


def test_stages_must_agree_and_point_back(recipe: Path, tmp_path: Path) -> None:
    write(recipe, "3_sft.yaml", f"stage: sft\nrun_dir: {tmp_path}/run\ninit_from: 10_push\n")
    with pytest.raises(UserError, match="needs 10_push, which comes after it"):
        load_recipe(recipe)
    write(recipe, "3_sft.yaml", "stage: sft\nrun_dir: elsewhere\n")
    with pytest.raises(UserError, match="different run folders"):
        load_recipe(recipe)
