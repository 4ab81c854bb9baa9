"""`hf-pretrain average CKPT... OUT`: one model whose weights are the mean of several checkpoints'.

The folder appears only after it was loaded again. What was averaged is in `average.json` there and, where OUT lies in
a run folder, in its `facts.json`.
"""

import argparse
import shutil
from pathlib import Path

from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.utils.errors import UserError


RECORD_FILE = "average.json"


def model_folder(path: Path) -> Path:
    """Finds the model that is meant.

    Args:
        path (`Path`): A stage's folder, its `model/`, a checkpoint, or any model folder.

    Returns:
        `Path`: The folder that holds `config.json`.

    Raises:
        UserError: If there is none.
    """
    folder = path / "model" if (path / "model").is_dir() else path
    if not (folder / "config.json").is_file():
        raise UserError(
            f"CKPT = {path}; {folder} holds no config.json: give a stage's folder, a checkpoint or a model."
        )
    return folder


def average(paths: list[Path], out: Path) -> int:
    """Averages checkpoints into a new folder, whole and loaded again, or nothing.

    Args:
        paths (`list[Path]`): The checkpoints, at least two.
        out (`Path`): Folder to make.

    Returns:
        `int`: Number of values that were averaged.

    Raises:
        UserError: If the folder is taken, or the checkpoints are not of one model.
    """
    from hf_pretrain.models.averaging import check_same_model, save_average
    from hf_pretrain.models.loading import load_causal_lm
    from hf_pretrain.utils.atomic import atomic_directory, sha256_file, write_json
    from hf_pretrain.utils.facts import Facts

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"OUT = {out}; it exists already: give another folder, or remove it.")
    folders = [model_folder(path) for path in paths]
    check_same_model(folders)
    with atomic_directory(out) as staging:
        size = save_average(folders, Path(staging))
        for file in sorted(folders[0].iterdir()):
            # Configuration, tokenizer and code of the model; no weights, states or records of one run.
            if file.suffix in (".json", ".py", ".jinja", ".model", ".txt") and not file.name.startswith(
                ("model.safetensors", "checkpoint_", "trainer_state")
            ):
                shutil.copyfile(file, Path(staging) / file.name)
        members = [
            {"path": str(path), "weights": [sha256_file(file) for file in sorted(folder.glob("*.safetensors"))]}
            for path, folder in zip(paths, folders, strict=True)
        ]
        record = {"method": "mean of weights, summed in float64, stored in float32", "members": members}
        write_json(Path(staging) / RECORD_FILE, record)
        model = load_causal_lm(Path(staging), "reload of the average")
        if model.config.tie_word_embeddings:
            head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
            if head is not embedding:
                raise UserError("reload of the average: embedding and head are not tied any more.")
    run = out.resolve().parent
    if (run / "facts.json").is_file():
        Facts(run).record("averages", {**Facts(run).load().get("averages", {}), out.name: record})
    return size


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain average`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain average", description="Average the weights of several checkpoints of one model."
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="CKPT", help="stages, checkpoints or models; OUT last")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        *paths, out = arguments.paths
        if len(paths) < 2:
            raise UserError("CKPT... OUT: give at least two checkpoints, and last the folder to make.")
        size = average(paths, out)
        print(f"{out}: mean of {len(paths)} checkpoints, {size:,} values")

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
