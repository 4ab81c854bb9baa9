"""`hf-pretrain report RUN`: one HTML page of a run, from its facts and logs."""

import argparse
from pathlib import Path

from hf_pretrain.scripts.execution import guarded, prepare_process


def write_report(run_dir: str | Path, path: str | Path) -> Path:
    """Writes the report of a run.

    Args:
        run_dir (`str` or `Path`): The run folder.
        path (`str` or `Path`): The HTML file to write.

    Returns:
        `Path`: The file.
    """
    from hf_pretrain.reporting.page import write_report as write

    return write(run_dir, path)


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain report`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(prog="hf-pretrain report", description="Write one HTML page of a run.")
    parser.add_argument("run", type=Path, help="the run folder, e.g. runs/tiny_cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the run folder)")
    arguments = parser.parse_args(argv)
    prepare_process()

    def work() -> None:
        print(write_report(arguments.run, arguments.out or arguments.run / "report.html"))

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
