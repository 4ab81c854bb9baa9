"""`hf-pretrain plan`: from a budget or a model to size, tokens, learning rate, batch, repeats, time and cost."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from hf_pretrain.planning.closed_loop import replan
from hf_pretrain.planning.cost import DEFAULT_GOODPUT, DEFAULT_MFU, MFU_BAND, Cluster, energy_kwh
from hf_pretrain.planning.counting import count_parameters
from hf_pretrain.planning.hardware import DEFAULT_NETWORK_GBS, load_devices
from hf_pretrain.planning.layout import Network
from hf_pretrain.planning.quantities import format_count, parse_count, parse_flops
from hf_pretrain.planning.repetition import parse_sources, repeats_by_source
from hf_pretrain.planning.run_plan import RunPlan, make_plan
from hf_pretrain.planning.scaling_laws import DEFAULT_LAW, get_law
from hf_pretrain.planning.shapes import design_shape
from hf_pretrain.planning.training_plan import (
    DEFAULT_ANNEAL,
    DEFAULT_LONG_SHARE,
    DEFAULT_SEQ_LENGTH,
    TrainingPlan,
    make_training_plan,
)
from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.scripts.model_configs import read_model_config, read_recipe
from hf_pretrain.scripts.plan_files import frontier_svg, write_recipe
from hf_pretrain.scripts.plan_from_run import measured_lines, take_over
from hf_pretrain.scripts.plan_text import model_lines
from hf_pretrain.utils.atomic import write_text
from hf_pretrain.utils.errors import UserError


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
    return lines


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _plan(
    arguments: argparse.Namespace, run_model: dict[str, Any] | None = None, run_tokens: float | None = None
) -> tuple[RunPlan, TrainingPlan | None]:
    """The plan the arguments ask for, else that of a run's model and tokens, and the rest where there is a model."""

    def count(text: str | None, name: str) -> float | None:
        return None if text is None else parse_count(text, name)

    params, tokens = count(arguments.params, "params"), count(arguments.tokens, "tokens")
    seq_length, batch = arguments.seq_length, arguments.global_batch
    model = run_model if arguments.config is None else read_model_config(arguments.config)
    tokens = run_tokens if tokens is None else tokens
    if arguments.recipe is not None:
        if model is not None or params is not None:
            raise UserError(f"recipe = {arguments.recipe}; it gives the model: leave --config and --params out.")
        model, recipe_tokens, stage = read_recipe(arguments.recipe)
        tokens = recipe_tokens if tokens is None else tokens
        seq_length = seq_length or stage.get("seq_length", 1024)
        batch = batch or stage.get("global_batch_size")
    bare = count(arguments.non_embedding_params, "non-embedding-params")
    if model is not None:
        if params is not None:
            raise UserError(f"params = {arguments.params}; --config = {arguments.config} gives them: leave one out.")
        counts = count_parameters(model)
        # A law of dense models sees of a sparse one what a token uses.
        params = float(counts.active)
        bare = float(counts.active_non_embedding) if bare is None else bare
    devices = () if arguments.hardware is None else load_devices(arguments.hardware)
    cluster = None if arguments.gpus is None else Cluster.parse(arguments.gpus, devices)

    def make(params: float | None, bare: float | None) -> RunPlan:
        return make_plan(
            parameters=params,
            tokens=tokens,
            flops=None if arguments.flops is None else parse_flops(arguments.flops),
            cluster=cluster,
            days=arguments.days,
            mfu=arguments.mfu,
            goodput=arguments.goodput,
            price=arguments.price,
            overhead=arguments.overhead,
            unique_tokens=count(arguments.unique_tokens, "unique-tokens"),
            inference_tokens=count(arguments.inference_tokens, "inference-tokens"),
            non_embedding_parameters=bare,
            law=arguments.law,
        )

    plan = make(params, bare)
    seq_length = DEFAULT_SEQ_LENGTH if seq_length is None else seq_length
    if model is None:
        try:
            model = design_shape(plan.parameters, arguments.vocab_size, seq_length)
        except UserError:
            if arguments.write is not None or arguments.vocab_size is not None:
                raise
            return plan, None
        exact = float(count_parameters(model).non_embedding)
        if bare is None and exact < plan.parameters:
            plan = make(params, exact)
    network = Network(arguments.gpus_per_node, arguments.link_gbs, arguments.network_gbs)
    full = make_training_plan(
        plan,
        model,
        cluster,
        network,
        seq_length,
        batch,
        arguments.anneal,
        arguments.long_context,
        arguments.long_share,
        arguments.head,
        arguments.fused_kernels,
    )
    return plan, full


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
    parser.add_argument("recipe", nargs="?", help="a recipe folder: its model and its tokens")
    parser.add_argument(
        "--from-run", metavar="RUN", help="a run folder: plan with the efficiency measured there, its model by default"
    )
    parser.add_argument("--params", metavar="N", help="parameters with embeddings, like 8B or 8e9")
    parser.add_argument("--tokens", metavar="D", help="training tokens, like 15T")
    parser.add_argument("--flops", metavar="C", help="budget, like 1e21")
    parser.add_argument("--gpus", metavar="64xH100", help="devices, for time and cost")
    parser.add_argument("--days", type=float, metavar="DAYS", help="with --gpus: the budget is what they do in them")
    parser.add_argument("--mfu", type=float, help=f"share of the peak while training ({DEFAULT_MFU}, or the run's)")
    parser.add_argument(
        "--goodput", type=float, help=f"share of the time that trains ({DEFAULT_GOODPUT}, or the run's)"
    )
    parser.add_argument("--price", type=float, metavar="PRICE", help="of a device-hour")
    parser.add_argument("--overhead", type=float, default=0.0, help="share on top of the devices' price (%(default)s)")
    parser.add_argument("--unique-tokens", metavar="U", help="distinct tokens at hand; more means repeats")
    parser.add_argument("--sources", metavar="web=4T:0.7,...", help="what each source holds, and its share")
    parser.add_argument("--inference-tokens", metavar="D", help="tokens the model will read and write in its life")
    parser.add_argument("--non-embedding-params", metavar="N", help="parameters without embeddings, if known")
    parser.add_argument("--law", default=DEFAULT_LAW, help="set of constants (%(default)s)")
    shape = parser.add_argument_group("model and steps")
    shape.add_argument("--config", metavar="MODEL", help="a config.json, its folder, or a preset such as dense-1b")
    shape.add_argument("--vocab-size", type=int, metavar="V", help="rows of the embedding, where no config says it")
    shape.add_argument("--seq-length", type=int, metavar="T", help=f"tokens of a sequence ({DEFAULT_SEQ_LENGTH})")
    shape.add_argument("--global-batch", type=int, metavar="B", help="sequences of an update (by StepLaw)")
    shape.add_argument(
        "--anneal", type=float, default=DEFAULT_ANNEAL, help="share of the tokens that decays (%(default)s)"
    )
    shape.add_argument("--long-context", type=int, metavar="T", help="length of a last stage")
    shape.add_argument(
        "--long-share", type=float, default=DEFAULT_LONG_SHARE, help="its share of the tokens (%(default)s)"
    )
    shape.add_argument("--head", default="chunked", metavar="HEAD", help="naive, chunked or liger (%(default)s)")
    shape.add_argument("--fused-kernels", action="store_true", help="Liger's norms, SwiGLU and RoPE")
    machine = parser.add_argument_group("devices")
    machine.add_argument("--hardware", metavar="YAML", help="a table of devices that wins over the built-in one")
    machine.add_argument("--gpus-per-node", type=int, default=8, help="devices of a machine (%(default)s)")
    machine.add_argument("--link-gbs", type=float, metavar="GB/s", help="a device sends so much inside its machine")
    machine.add_argument(
        "--network-gbs", type=float, default=DEFAULT_NETWORK_GBS, help="and to other machines (%(default)s)"
    )
    machine.add_argument("--watts", type=float, metavar="W", help="draw of a device, for the energy")
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print JSON")
    out.add_argument("--write", metavar="FOLDER", help="write a recipe that runs the plan")
    out.add_argument("--corpus", default="corpus", help="its corpus: a folder with tokenizer/ and tokens/")
    out.add_argument("--plot", metavar="SVG", help="write the loss frontier with the plan on it")
    arguments = parser.parse_args(argv)
    prepare_process()

    def work() -> None:
        measured, model, tokens = None, None, None
        if arguments.from_run is not None:
            measured, model, tokens = take_over(arguments)
        arguments.mfu = DEFAULT_MFU if arguments.mfu is None else arguments.mfu
        arguments.goodput = DEFAULT_GOODPUT if arguments.goodput is None else arguments.goodput
        price = arguments.price
        if measured is not None and arguments.gpus is None:
            arguments.price = None  # it is that of the run's devices, not of a cluster
        plan, full = _plan(arguments, model, tokens)
        again = None if measured is None else replan(measured, plan.flops, price=price)
        if arguments.write is not None:
            if full is None:
                raise UserError("write: no model of that size can be drawn up; give --config.")
            write_recipe(full, arguments.write, arguments.corpus, devices_per_node=arguments.gpus_per_node)
        if arguments.plot is not None:
            write_text(arguments.plot, frontier_svg(plan))
        sources = []
        if arguments.sources is not None:
            sources = repeats_by_source(plan.tokens, *parse_sources(arguments.sources))
        if arguments.json:
            facts = plan.to_dict() if full is None else full.to_dict()
            facts["sources"] = [asdict(one) for one in sources]
            if arguments.watts is not None and plan.estimate is not None:
                facts["energy_kwh"] = energy_kwh(plan.estimate.hours, arguments.watts)
            if again is not None:
                facts["measured"] = again
            print(json.dumps(facts, allow_nan=False))
            return
        table = ["", "epochs of each source"] if sources else []
        table += [f"  {one.name:<16} {one.share:.1%} of the tokens: {one.advice}" for one in sources]
        lines = plan_lines(plan) + table + ([] if full is None else model_lines(full))
        lines += [] if again is None else measured_lines(again)
        if arguments.watts is not None and plan.estimate is not None:
            lines.append(
                f"  {'energy':<16} {energy_kwh(plan.estimate.hours, arguments.watts):,.0f} kWh, cooling included"
            )
        warnings = (*plan.warnings, *(() if full is None else full.warnings))
        if warnings:
            lines += ["", "mind", *(f"  {warning}" for warning in warnings)]
        print("\n".join(lines))

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
