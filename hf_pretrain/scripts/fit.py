"""`hf-pretrain fit`: a scaling law from finished runs, with intervals, and the best split of a budget.

Reads CSV files, run folders, or the folder of `hf-pretrain ladder`. Fits L = E + A / N^alpha + B / D^beta (approach 3)
with bootstrap intervals, IsoFLOP parabolas (approach 2) as a cross-check, and predicts held-out runs.
"""

import argparse
import json
from pathlib import Path

from hf_pretrain.planning.fit_report import CONSTANTS, FitReport, make_fit_report
from hf_pretrain.planning.ladder_points import COUNTS, points_csv, read_points
from hf_pretrain.planning.quantities import format_count, parse_flops
from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.utils.atomic import write_text
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import require


def fit_lines(report: FitReport) -> list[str]:
    """Writes a fit for people.

    Args:
        report (`FitReport`): The fit.

    Returns:
        `list[str]`: Lines.
    """
    law = report.fit.law
    words = report.count.replace("_", " ")
    lines = [
        f"L = E + A / N^alpha + B / D^beta, N = {words} parameters, {report.fit.num_points} runs, {report.level:.0%} "
        f"intervals of {len(report.bootstrap.laws)} resamples",
        f"  {'constant':<10} {'value':>11} {'low':>11} {'high':>11} {'std. error':>11}",
    ]
    for name in CONSTANTS:
        low, high = report.intervals[name]
        error = report.standard_errors[name]
        lines.append(f"  {name:<10} {getattr(law, name):>11.4g} {low:>11.4g} {high:>11.4g} {error:>11.2g}")
    errors = [abs(item.error) for item in report.fitted]
    lines += [
        f"  sum of Huber losses {report.fit.objective:.4g}, largest slope at the end {report.fit.gradient_norm:.1e}",
        f"  error on the runs of the fit: mean {sum(errors) / len(errors):.2%}, largest {max(errors):.2%}",
    ]
    if report.isoflop is not None:
        how = "interpolated along each size" if report.isoflop.interpolated else "runs of equal compute"
        lines += [
            "",
            f"approach 2: N_opt = {report.isoflop.coefficient:.4g} C^{report.isoflop.exponent:.3f} through "
            f"{len(report.isoflop.budgets)} parabolas ({how}); approach 3 has C^{law.a:.3f}",
        ]
    if report.held_out:
        lines += ["", "held out", f"  {'run':<20} {'measured':>9} {'predicted':>9} {'error':>8}  interval"]
        for item in report.held_out:
            interval = "" if item.interval is None else f"{item.interval[0]:.4f} to {item.interval[1]:.4f}"
            lines.append(
                f"  {item.name:<20} {item.measured:>9.4f} {item.predicted:>9.4f} {item.error:>+8.2%}  {interval}"
            )
    if report.target is not None:
        best = report.target
        lines += ["", f"best split of {best.flops:.3g} FLOPs (6 N D)"]
        for name, unit in (("parameters", words), ("tokens", ""), ("tokens_per_parameter", ""), ("loss", "nats")):
            low, high = best.intervals[name]
            value = getattr(best, name)
            shown = [format_count(v) if v >= 1000 else f"{v:.4g}" for v in (value, low, high)]
            lines.append(f"  {name.replace('_', ' '):<22} {shown[0]:>8}  {shown[1]} to {shown[2]} {unit}".rstrip())
        if best.isoflop_parameters is not None:
            lines.append(f"  {'parameters, approach 2':<22} {format_count(best.isoflop_parameters):>8}")
    if report.warnings:
        lines += ["", "mind", *(f"  {warning}" for warning in report.warnings)]
    return lines


def write_plots(report: FitReport, folder: Path) -> list[Path]:
    """Draws the fit.

    Args:
        report (`FitReport`): The fit.
        folder (`Path`): Where `fit_loss.svg` and `fit_frontier.svg` go.

    Returns:
        `list[Path]`: The files.
    """
    from hf_pretrain.reporting.fit_figures import frontier_chart, loss_chart, standalone

    plain = report.to_dict()
    runs = [6 * item.parameters * item.tokens for item in (*report.fitted, *report.held_out)]
    low, high = min(runs) / 2, max(runs) * 2
    if report.target is not None:
        low, high = min(low, report.target.flops / 2), max(high, report.target.flops * 2)
    flops = [low * (high / low) ** (step / 40) for step in range(41)]
    band = [report.bootstrap.interval("parameters", report.level, value) for value in flops]
    drawings = {
        "fit_loss.svg": loss_chart("wide", plain),
        "fit_frontier.svg": frontier_chart(
            "wide", plain, flops, band, lambda value: report.fit.law.optimum(value).parameters
        ),
    }
    for name, svg in drawings.items():
        write_text(folder / name, standalone(svg))
    return [folder / name for name in drawings]


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain fit`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain fit", description="Fit a scaling law to finished runs and find the best split of a budget."
    )
    parser.add_argument(
        "points",
        nargs="+",
        metavar="POINTS",
        help="CSV with parameters, tokens, loss (and name, held_out, flops), a run folder, or the folder of a ladder",
    )
    parser.add_argument("--target", metavar="C", help="budget to split, like 1e21")
    parser.add_argument(
        "--count", default="total", metavar="WHAT", help=f"what N counts: {' or '.join(COUNTS)} (%(default)s)"
    )
    parser.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (%(default)s)")
    parser.add_argument("--level", type=float, default=0.8, help="share of the resamples in an interval (%(default)s)")
    parser.add_argument("--held-out", action="append", default=[], metavar="RUN", help="name of a run to predict")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write fit_loss.svg and fit_frontier.svg there")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the runs there, as a CSV that this verb reads")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.json)

    def work() -> None:
        import dataclasses

        target = None if arguments.target is None else parse_flops(arguments.target)
        points = read_points(arguments.points, arguments.count)
        names = [point.name for point in points]
        for name in arguments.held_out:
            if name not in names:
                raise UserError(f"--held-out {name}; there is no such run: {', '.join(names)}.")
        if arguments.held_out:
            points = [dataclasses.replace(point, held_out=point.name in arguments.held_out) for point in points]
        require("scipy", "planning", "fitting a law")
        report = make_fit_report(points, arguments.count, target, arguments.resamples, arguments.level, arguments.seed)
        if arguments.csv is not None:
            write_text(arguments.csv, points_csv(points))
        files = [] if arguments.plot is None else write_plots(report, arguments.plot)
        if arguments.json:
            print(json.dumps({**report.to_dict(), "plots": [str(file) for file in files]}, allow_nan=False))
        else:
            print("\n".join([*fit_lines(report), *(f"\nplot  {file}" for file in files)]))

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
