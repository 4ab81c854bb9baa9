"""`hf-pretrain trace`: which documents the batch of a training step held, and the way back from a document to steps.

Works on a run folder that was copied elsewhere, as long as its token shards came along.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.utils.errors import UserError


ORDER_FILE = "data_order.json"


def find_stage(run: Path, stage: str | None) -> Path:
    """Finds the training stage that is meant.

    Args:
        run (`Path`): A run folder, or a stage's folder in it.
        stage (`str`, *optional*): Name of the stage; by default the first one with a data order.

    Returns:
        `Path`: The stage's folder.

    Raises:
        UserError: If there is no such stage.
    """
    if stage is None and (run / ORDER_FILE).is_file():
        return run
    found = sorted(path.parent for path in run.glob(f"*/{ORDER_FILE}") if not path.parent.name.endswith(".previous"))
    if stage is not None:
        if run / stage in found:
            return run / stage
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"--stage {stage}: {run} has no data order of that stage; there are: {names}.")
    if not found:
        raise UserError(
            f"{run}: no stage in it has a {ORDER_FILE}; give the folder of a run that trained at least one step."
        )
    return found[0]


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain trace`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain trace", description="Name the documents of a training step's batch, or a document's steps."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, or a stage's folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=int, help="optimizer step, from 1")
    what.add_argument("--doc", metavar="ID", help="id of a document: at which steps it was read")
    parser.add_argument("--rank", type=int, help="only what this process read (with --step)")
    parser.add_argument("--row", type=int, help="only this row, of the process or of the global batch (with --step)")
    parser.add_argument("--stage", help="name of the stage, e.g. 3_anneal; the first training stage by default")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        folder = find_stage(arguments.run, arguments.stage)
        if arguments.doc is None:
            _show_step(folder, arguments)
        elif arguments.rank is not None or arguments.row is not None:
            raise UserError("--rank and --row choose rows of a step; with --doc leave them out")
        else:
            _show_document(folder, arguments)

    return guarded(work)


def _show_step(folder: Path, arguments: argparse.Namespace) -> None:
    from hf_pretrain.data.trace import trace_step

    traces = trace_step(folder, arguments.step, arguments.rank, arguments.row)
    if arguments.json:
        rows = [trace.to_json() for trace in traces]
        print(json.dumps({"stage": folder.name, "step": arguments.step, "rows": rows}, indent=2, ensure_ascii=False))
        return
    print(f"{folder.name} step {arguments.step}: {len(traces)} rows")
    for trace in traces:
        who = "" if trace.rank is None else f"  rank {trace.rank} row {trace.rank_row}"
        print(
            f"row {trace.row}{who}  sample {trace.sample_index}  {trace.source}  epoch {trace.epoch}  "
            f"window {trace.window}"
        )
        for document in trace.to_json()["documents"]:
            span = f"tokens {document['document_start']}-{document['document_stop']}"
            if "num_tokens" in document:
                span += f" of {document['num_tokens']}"
            name = document.get("id", f"document {document['document_index']}")
            print(f"    {name}  {document.get('url') or '-'}  {span}{_scores(document)}")


def _scores(document: dict[str, Any]) -> str:
    """What the filters measured of a document, where the corpus kept it."""
    metadata = document.get("metadata") or {}
    numbers = [
        f"{key}={value:.4g}"
        for key, value in metadata.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return f"  {' '.join(numbers)}" if numbers else ""


def _show_document(folder: Path, arguments: argparse.Namespace) -> None:
    from hf_pretrain.data.lookup import trace_document

    found = trace_document(folder, arguments.doc)
    if arguments.json:
        documents = [document.to_json() for document in found]
        print(json.dumps({"stage": folder.name, "documents": documents}, indent=2, ensure_ascii=False))
        return
    for document in found:
        place = f"{document.source}  {document.record.get('url') or '-'}  {document.num_tokens} tokens"
        print(f"{arguments.doc}  {place}{_scores(document.record)}")
        for reading in document.readings:
            who = "" if reading.rank is None else f"  rank {reading.rank}"
            print(
                f"    step {reading.step}  row {reading.row}{who}  epoch {reading.epoch}  "
                f"tokens {reading.document_start}-{reading.document_stop}"
            )
        if not document.readings:
            print("    read at no step of this stage's plan")
        if document.left_out:
            print(f"    {document.left_out} samples with it were skipped")


if __name__ == "__main__":
    raise SystemExit(main())
