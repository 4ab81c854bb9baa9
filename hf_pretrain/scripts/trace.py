"""`hf-pretrain trace`: which documents the batch of a training step held, with source, id, URL and span of tokens."""

import argparse
import json
from pathlib import Path

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
        prog="hf-pretrain trace", description="Name the documents of a training step's batch."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, or a stage's folder")
    parser.add_argument("--step", type=int, required=True, help="optimizer step, from 1")
    parser.add_argument("--stage", help="name of the stage, e.g. 3_anneal; the first training stage by default")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        from hf_pretrain.data.trace import trace_step

        folder = find_stage(arguments.run, arguments.stage)
        traces = trace_step(folder, arguments.step)
        if arguments.json:
            rows = [trace.to_json() for trace in traces]
            print(
                json.dumps({"stage": folder.name, "step": arguments.step, "rows": rows}, indent=2, ensure_ascii=False)
            )
            return
        print(f"{folder.name} step {arguments.step}: {len(traces)} rows")
        for trace in traces:
            print(
                f"row {trace.row}  sample {trace.sample_index}  {trace.source}  epoch "
                f"{trace.epoch}  window {trace.window}"
            )
            for document in trace.to_json()["documents"]:
                span = f"tokens {document['document_start']}-{document['document_stop']}"
                if "num_tokens" in document:
                    span += f" of {document['num_tokens']}"
                name = document.get("id", f"document {document['document_index']}")
                print(f"    {name}  {document.get('url') or '-'}  {span}")

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
