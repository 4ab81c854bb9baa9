"""`hf-pretrain plan`: from a budget or a model to size, tokens, learning rate, batch, repeats, time and cost."""

import argparse
import json

from hf_pretrain.planning.cost import DEFAULT_GOODPUT, DEFAULT_MFU, MFU_BAND, Cluster
from hf_pretrain.planning.quantities import format_count, parse_count, parse_flops
from hf_pretrain.planning.run_plan import RunPlan, make_plan
from hf_pretrain.planning.scaling_laws import DEFAULT_LAW, get_law
from hf_pretrain.scripts.execution import guarded, prepare_process


def plan_lines(plan: RunPlan) -> list[str]:
    """Writes a plan for people.

    Args:
        plan (`RunPlan`): From [`make_plan`].

    Returns:
        `list[str]`: Lines.
    """
    source = get_law(plan.law).source
    bare = format_count(plan.non_embedding_parameters)
    bare = f"about {bare}" if plan.non_embedding_estimated else bare
    lines = [
        f"plan by the law '{plan.law}' ({source})",
        f"  {'parameters':<16} {format_count(plan.parameters)} {plan.param_convention}, {bare} without embeddings",
        f"  {'tokens':<16} {format_count(plan.tokens)}, {_ratio(plan.tokens_per_parameter)} a parameter",
        f"  {'compute':<16} {plan.flops:.3g} FLOPs ({plan.flop_convention}: 6 N D, attention scores not counted)",
        f"  {'loss':<16} {plan.loss:.4f} nats a token on the law's data: compare plans with it, expect no level",
        f"  {'premium':<16} {plan.overtraining_premium:.2f} times the least compute with this loss on fresh tokens",
        "",
        "what the laws would do with this compute",
        f"  {'law':<16} {'parameters':>10} {'tokens':>8} {'a parameter':>12} {'loss':>7}",
    ]
    for item in plan.band:
        loss = "" if item.loss is None else f"{item.loss:.4f}"
        lines.append(
            f"  {item.law:<16} {format_count(item.parameters):>10} {format_count(item.tokens):>8} "
            f"{_ratio(item.tokens_per_parameter):>12} {loss:>7}".rstrip()
        )
    lines += ["", "learning rate and batch: starting points", f"  {'law':<16} {'peak rate':>10} {'batch tokens':>13}"]
    for item in plan.step_sizes:
        rate = "" if item.learning_rate is None else f"{item.learning_rate:.2e}"
        batch = "" if item.batch_tokens is None else format_count(item.batch_tokens)
        lines.append(f"  {item.law:<16} {rate:>10} {batch:>13}")
    if plan.repeats is not None:
        worth = format_count(plan.repeats.effective_tokens)
        lines += ["", "repeats", f"  {'unique tokens':<16} {format_count(plan.repeats.unique_tokens)}"]
        lines.append(f"  {'epochs':<16} {plan.repeats.epochs:.2f}, worth {worth} fresh tokens")
    if plan.lifetime is not None:
        life = plan.lifetime
        gain = f"{life.saving:.1%} below the plan's {life.plan_total_flops:.3g}"
        lines += [
            "",
            f"with {format_count(life.inference_tokens)} tokens of inference, at the same loss on fresh tokens",
            f"  {'cheapest':<16} {format_count(life.parameters)} on {format_count(life.tokens)} tokens",
            f"  {'total':<16} {life.total_flops:.3g} FLOPs, {gain}",
        ]
    if plan.estimate is not None:
        run = plan.estimate
        lines += [
            "",
            f"on {plan.cluster} at MFU {plan.mfu:g} and goodput {plan.goodput:g}",
            f"  {'device hours':<16} {run.hours:,.0f}, between {run.hours_low:,.0f} and {run.hours_high:,.0f} "
            f"(MFU {MFU_BAND[1]:g} to {MFU_BAND[0]:g}, as published)",
            f"  {'days':<16} {run.days:,.1f}",
        ]
        if run.cost_low is not None:
            exact = "" if run.cost is None else f"{run.cost:,.0f}, "
            prices = (
                f"{run.price_low:g}" if run.price_low == run.price_high else f"{run.price_low:g} to {run.price_high:g}"
            )
            lines.append(
                f"  {'cost':<16} {exact}between {run.cost_low:,.0f} and {run.cost_high:,.0f} at {prices} an hour"
            )
    if plan.warnings:
        lines += ["", "mind", *(f"  {warning}" for warning in plan.warnings)]
    return lines


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain plan`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain plan", description="Plan a run from a model, an amount of data or a budget."
    )
    parser.add_argument("--params", metavar="N", help="parameters with embeddings, like 8B or 8e9")
    parser.add_argument("--tokens", metavar="D", help="training tokens, like 15T")
    parser.add_argument("--flops", metavar="C", help="budget, like 1e21")
    parser.add_argument("--gpus", metavar="64xH100", help="devices, for time and cost")
    parser.add_argument("--days", type=float, metavar="DAYS", help="with --gpus: the budget is what they do in them")
    parser.add_argument(
        "--mfu", type=float, default=DEFAULT_MFU, help="share of the peak while training (%(default)s)"
    )
    parser.add_argument(
        "--goodput", type=float, default=DEFAULT_GOODPUT, help="share of the time that trains (%(default)s)"
    )
    parser.add_argument("--price", type=float, metavar="PRICE", help="of a device-hour")
    parser.add_argument("--overhead", type=float, default=0.0, help="share on top of the devices' price (%(default)s)")
    parser.add_argument("--unique-tokens", metavar="U", help="distinct tokens at hand; more means repeats")
    parser.add_argument("--inference-tokens", metavar="D", help="tokens the model will read and write in its life")
    parser.add_argument("--non-embedding-params", metavar="N", help="parameters without embeddings, if known")
    parser.add_argument("--law", default=DEFAULT_LAW, help="set of constants (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    prepare_process()

    def count(text: str | None, name: str) -> float | None:
        return None if text is None else parse_count(text, name)

    def work() -> None:
        plan = make_plan(
            parameters=count(arguments.params, "params"),
            tokens=count(arguments.tokens, "tokens"),
            flops=None if arguments.flops is None else parse_flops(arguments.flops),
            cluster=None if arguments.gpus is None else Cluster.parse(arguments.gpus),
            days=arguments.days,
            mfu=arguments.mfu,
            goodput=arguments.goodput,
            price=arguments.price,
            overhead=arguments.overhead,
            unique_tokens=count(arguments.unique_tokens, "unique-tokens"),
            inference_tokens=count(arguments.inference_tokens, "inference-tokens"),
            non_embedding_parameters=count(arguments.non_embedding_params, "non-embedding-params"),
            law=arguments.law,
        )
        print(json.dumps(plan.to_dict(), allow_nan=False) if arguments.json else "\n".join(plan_lines(plan)))

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
