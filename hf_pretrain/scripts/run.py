"""`hf-pretrain run RECIPE`: every stage in order, skipping what is done, going on with what was interrupted.

All stages are validated before the first one works, so a typing error in the last file does not cost an hour.
"""

import argparse
import json
import time
from pathlib import Path

from hf_pretrain.scripts.execution import (
    claim_run_folder,
    execute_stage,
    guarded,
    prepare_process,
    retire_stage,
    run_folder_lock,
    stage_fingerprint,
    stage_module,
)
from hf_pretrain.scripts.recipe import StageSpec, load_recipe
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts
from hf_pretrain.utils.manifest import StepManifest
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.progress import format_duration, is_quiet


def plan_stages(specs: list[StageSpec], force: list[str]) -> list[tuple[StageSpec, str]]:
    """Decides what has to run.

    Args:
        specs (`list[StageSpec]`): The stages in order.
        force (`list[str]`): Stages to run again even if they are done.

    Returns:
        `list[tuple[StageSpec, str]]`: Each stage with the reason it runs, or an empty text when it is done.

    Raises:
        UserError: If `force` names an unknown stage.
    """
    names = [spec.name for spec in specs]
    for name in force:
        if name not in names:
            raise UserError(f"--force {name}: {unknown_name_message('stage', name, names)}")
    plan: list[tuple[StageSpec, str]] = []
    reasons: dict[str, str] = {}
    for spec in specs:
        manifest = StepManifest.load(spec.stage_dir / "stage.json")
        upstream = [name for name in spec.dependencies() if reasons[name]]
        if spec.name in force:
            reason = "asked for"
        elif manifest is None:
            reason = "not run yet"
        elif manifest.fingerprint != stage_fingerprint(spec):
            reason = "its configuration or inputs changed"
        elif manifest.status != "done":
            reason = "it was interrupted"
        elif upstream:
            reason = f"it builds on {', '.join(upstream)}"
        else:
            reason = ""
        reasons[spec.name] = reason
        plan.append((spec, reason))
    return plan


def run_recipe(specs: list[StageSpec], force: list[str], until: str | None = None) -> dict[str, object]:
    """Runs a recipe.

    Args:
        specs (`list[StageSpec]`): The stages in order.
        force (`list[str]`): Stages to run again even if they are done.
        until (`str`, *optional*): Last stage to run.

    Returns:
        `dict`: What was run, what was skipped, and where the results lie.
    """
    run_dir = specs[0].run_dir
    claim_run_folder(specs[0])
    pending = [(spec, reason) for spec, reason in plan_stages(specs, force) if reason]
    if until is not None:
        names = [spec.name for spec in specs]
        if until not in names:
            raise UserError(f"--until {until}: {unknown_name_message('stage', until, names)}")
        pending = [(spec, reason) for spec, reason in pending if names.index(spec.name) <= names.index(until)]
    begin = time.monotonic()
    if pending:
        from hf_pretrain.scripts.env import environment_facts

        Facts(run_dir).record("environment", environment_facts())
    for number, (spec, reason) in enumerate(pending, start=1):
        _say(f"\n[{number}/{len(pending)}] {spec.name} ({spec.kind}): {reason}")
        manifest = StepManifest.load(spec.stage_dir / "stage.json")
        if manifest is not None and manifest.status == "done":
            # Whatever the reason, what lies there is a finished result: nothing to resume from.
            retire_stage(spec)
        started = time.monotonic()
        execute_stage(spec, stage_module(spec).run)
        _say(f"[{number}/{len(pending)}] {spec.name} done in {format_duration(time.monotonic() - started)}")
    report = run_dir / "report.html"
    if pending or not report.exists():
        from hf_pretrain.scripts.report import write_report

        write_report(run_dir, report)
    done = {spec.name for spec, _ in pending}
    cards = [spec.stage_dir / "model" / "README.md" for spec in specs if spec.kind == "push"]
    return {
        "run_dir": str(run_dir),
        "ran": [spec.name for spec, _ in pending],
        "skipped": [spec.name for spec in specs if spec.name not in done],
        "seconds": round(time.monotonic() - begin, 1),
        "report": str(report),
        "card": next((str(card) for card in cards if card.exists()), None),
    }


def _say(text: str) -> None:
    if not is_quiet():
        print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain run`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(prog="hf-pretrain run", description="Run all stages of a recipe folder in order.")
    parser.add_argument("recipe", type=Path, help="the recipe folder, e.g. recipes/tiny_cpu")
    parser.add_argument("--run-dir", metavar="FOLDER", help="run folder, instead of the one in the files")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", help="override a key")
    parser.add_argument("--until", metavar="STAGE", help="stop after this stage")
    parser.add_argument("--force", action="append", default=[], metavar="STAGE", help="run a done stage again")
    parser.add_argument("--dry-run", action="store_true", help="validate all files, say what would run, and stop")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.quiet or arguments.json)

    def work() -> None:
        specs = load_recipe(arguments.recipe, arguments.run_dir, arguments.set)
        plan = plan_stages(specs, arguments.force)
        for spec, reason in plan:
            # A done stage was valid when it ran, and checking it would import what it needs.
            if reason or arguments.dry_run:
                stage_module(spec).check(spec)
        if arguments.dry_run:
            _print_plan(plan, arguments.json)
            return
        with run_folder_lock(specs[0].run_dir):
            outcome = run_recipe(specs, arguments.force, arguments.until)
        _print_outcome(outcome, arguments.json)

    return guarded(work)


def _print_plan(plan: list[tuple[StageSpec, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"stage": spec.name, "runs": bool(reason), "reason": reason} for spec, reason in plan]))
        return
    for spec, reason in plan:
        print(f"{spec.name:<20} {'would run: ' + reason if reason else 'done, would be skipped'}")


def _print_outcome(outcome: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome))
        return
    if not outcome["ran"]:
        print("Nothing to do: every stage is done and unchanged.")
    print(f"\nreport  {outcome['report']}")
    if outcome["card"]:
        print(f"card    {outcome['card']}")


if __name__ == "__main__":
    raise SystemExit(main())
