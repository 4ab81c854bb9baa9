"""All benchmarks of the corpus, one after the other; each prints its own Markdown tables.

OMP_NUM_THREADS=1 python tests/benchmarks/corpus.py [--quick] [--corpus FOLDER] [--only extraction,dedup]
"""

import argparse
import importlib.util
import inspect
import sys
import time
from pathlib import Path


PARTS = ("extraction", "filters", "dedup", "decontamination")


def load(part: str):
    """The module of a part, `None` where there is none."""
    path = Path(__file__).with_name(f"corpus_{part}.py")
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"corpus_{part}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look there
    spec.loader.exec_module(module)
    return module


def call(module, arguments: list[str]) -> None:
    """Runs a part, whether its `main` takes the arguments or reads the command line."""
    if inspect.signature(module.main).parameters:
        module.main(arguments)
        return
    before = sys.argv
    sys.argv = [module.__file__, *arguments]
    try:
        module.main()
    finally:
        sys.argv = before


def main(argv: list[str] | None = None) -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="passed on: few documents")
    parser.add_argument("--corpus", type=Path, help="passed on: a corpus folder")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, divided by commas")
    options = parser.parse_args(argv)
    chosen = options.only.split(",")
    for part in chosen:
        if part not in PARTS:
            parser.error(f"--only {part}; the parts are {', '.join(PARTS)}")
    arguments = ["--quick"] * options.quick + (["--corpus", str(options.corpus)] if options.corpus else [])
    for part in chosen:
        module = load(part)
        print(f"\n## {part}\n", flush=True)
        if module is None:
            print(f"not here: tests/benchmarks/corpus_{part}.py is missing", flush=True)
            continue
        begin = time.perf_counter()
        call(module, arguments)
        print(f"\n{part}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
