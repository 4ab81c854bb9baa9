"""`hf-pretrain env`: versions and what this machine can do."""

import argparse
import json
import os
import platform
from importlib import metadata
from typing import Any

from hf_pretrain import __version__
from hf_pretrain.scripts.execution import guarded, prepare_process


PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "datatrove",
    "trl",
    "peft",
    "liger-kernel",
    "tokenizers",
    "huggingface_hub",
    "numpy",
)


def environment_facts() -> dict[str, Any]:
    """Versions and machine, without importing anything heavy.

    Returns:
        `dict`: `{"versions": {...}, "machine": {...}}`; a package that is not installed is left out.
    """
    versions = {"hf_pretrain": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name.replace("-", "_")] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    machine = {"system": platform.system(), "architecture": platform.machine(), "cpu_cores": usable}
    return {"versions": versions, "machine": machine}


def _device_facts() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"torch": False}
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    facts: dict[str, Any] = {"torch": True, "threads": torch.get_num_threads(), "cuda_devices": devices}
    if devices:
        facts["bf16"] = torch.cuda.is_bf16_supported()
    return facts


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain env`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(prog="hf-pretrain env", description="Show versions and what this machine can do.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    prepare_process()

    def work() -> None:
        facts = environment_facts()
        facts["devices"] = _device_facts()
        if arguments.json:
            print(json.dumps(facts))
            return
        for section, values in facts.items():
            print(section)
            for key, value in values.items():
                shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
                print(f"  {key:<16} {shown}")

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
