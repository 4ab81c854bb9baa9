"""What `hf-pretrain plan` writes: a recipe that runs the plan, and the chart of the loss frontier."""

import json
import math
from pathlib import Path
from typing import Any

from hf_pretrain.planning.layout import Layout
from hf_pretrain.planning.quantities import format_count
from hf_pretrain.planning.run_plan import RunPlan
from hf_pretrain.planning.scaling_laws import get_law
from hf_pretrain.planning.training_plan import TrainingPlan
from hf_pretrain.utils.atomic import write_json, write_text
from hf_pretrain.utils.errors import UserError


# Fields of a plan's model that a recipe does not give: they are Strata's own, or the class derives them.
_NOT_IN_RECIPES = ("model_type", "transformers_version", "architectures", "dtype")


def accelerate_config(layout: Layout, devices_per_node: int) -> dict[str, Any]:
    """The launch configuration of a layout, as `accelerate launch --config_file` reads it.

    Args:
        layout (`Layout`): One that can be launched.
        devices_per_node (`int`): Devices of a machine.

    Returns:
        `dict`: FSDP2 with a `parallelism_config` where there is more than sharding, DDP, or a single process.
    """
    plan = layout.parallelism
    world = plan.world
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if world == 1 else "MULTI_GPU" if plan.strategy == "ddp" else "FSDP",
        "num_machines": max(1, world // devices_per_node),
        "num_processes": world,
        "machine_rank": 0,
        "mixed_precision": "bf16",
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    sharded = plan.tp > 1 or plan.cp > 1 or (plan.strategy == "zero3" and world > 1)
    if sharded:
        config["distributed_type"] = "FSDP"
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": layout.checkpointing == "full",
        }
    if sharded and (plan.dp_replicate > 1 or plan.tp > 1 or plan.cp > 1):
        degrees = {"dp_replicate": plan.dp_replicate, "dp_shard": plan.dp_shard, "tp": plan.tp, "cp": plan.cp}
        config["parallelism_config"] = {f"parallelism_config_{name}_size": value for name, value in degrees.items()}
    return config


def recipe_files(plan: TrainingPlan, corpus: str, run_dir: str, devices_per_node: int = 8) -> dict[str, str]:
    """The files of a recipe that runs the plan.

    Args:
        plan (`TrainingPlan`): The plan; its model must be a Strata.
        corpus (`str`): The corpus: a folder with `tokenizer/` and `tokens/`.
        run_dir (`str`): The run folder.
        devices_per_node (`int`, *optional*, defaults to 8): Devices of a machine.

    Returns:
        `dict[str, str]`: Texts by file name.

    Raises:
        UserError: If the model is no Strata, or no layout found can be launched.
    """
    import yaml

    if plan.model.get("model_type") != "strata":
        raise UserError(
            f"write: the model is a {plan.model.get('model_type', 'llama')}; recipes train Strata models: plan from "
            "--params or a preset."
        )
    layout = None
    if plan.layouts is not None:
        layout = plan.layouts.launchable
        if layout is None:
            raise UserError("write: no layout that fits can be launched with accelerate; give more or larger devices.")
    fields = {key: value for key, value in plan.model.items() if key not in _NOT_IN_RECIPES and value is not None}
    micro_batch = 1 if layout is None else layout.micro_batch
    checkpointing = layout is not None and layout.checkpointing == "full" and layout.parallelism.strategy == "ddp"
    last = plan.stages[-1]
    long = last if last.name == "long context" else None
    tokens = round(sum(stage.tokens for stage in plan.stages if stage is not long))
    anneal = next((stage.tokens for stage in plan.stages if stage.name == "anneal"), 0.0)
    common: dict[str, Any] = {"stage": "pretrain", "run_dir": run_dir, "corpus": corpus}
    first = common | {
        "model": fields,
        "train_tokens": tokens,
        "seq_length": plan.seq_length,
        "global_batch_size": plan.global_batch,
        "per_device_train_batch_size": micro_batch,
        "schedule": "wsd",
        "warmup_steps": plan.warmup_steps,
        "decay_fraction": round(anneal / tokens, 6),
        "learning_rate": float(f"{plan.learning_rate:.4g}"),
    }
    if checkpointing:
        first["gradient_checkpointing"] = True
    if plan.run.repeats is not None and plan.run.repeats.epochs > 4:
        first["max_epochs"] = float(math.ceil(plan.run.repeats.epochs))
    files = {
        "1_pretrain.yaml": "# Warm-up, stable phase and decay of the plan in plan.json.\n"
        + yaml.safe_dump(first, sort_keys=False)
    }
    if long is not None:
        ratio = long.seq_length / plan.seq_length
        batch = max(1, round(plan.global_batch / ratio))
        ranks = 1 if layout is None else layout.parallelism.data_parallel
        second = common | {
            "init_from": "1_pretrain",
            "extend_context": {"rope_type": "yarn", "factor": ratio},
            "train_tokens": round(long.tokens),
            "seq_length": long.seq_length,
            "global_batch_size": max(1, batch // ranks) * ranks,
            "per_device_train_batch_size": 1,
            "schedule": "linear",
            "warmup_fraction": 0.01,
            "learning_rate": float(f"{plan.learning_rate / 10:.4g}"),
        }
        files["2_long_context.yaml"] = "# The context made longer, on the last of the tokens.\n" + yaml.safe_dump(
            second, sort_keys=False
        )
    launch = "hf-pretrain run ."
    if layout is not None:
        files["accelerate.yaml"] = f"# {layout.parallelism.describe()}: {layout.reason()}.\n" + yaml.safe_dump(
            accelerate_config(layout, devices_per_node), sort_keys=False
        )
        launch = (
            "accelerate launch --config_file accelerate.yaml -m hf_pretrain.scripts.pretrain --config 1_pretrain.yaml"
        )
    files["README.md"] = (
        f"# A planned run\n\n{format_count(plan.counts.total)} parameters on {format_count(plan.run.tokens)} tokens, "
        f"{plan.steps:,} updates of {plan.global_batch} sequences of {plan.seq_length}. The whole plan is in "
        f"`plan.json`.\n\n`{corpus}` is the corpus: a folder with `tokenizer/` and `tokens/`, as `hf-pretrain corpus` "
        f"makes it.\n\n```bash\nhf-pretrain run . --dry-run\n{launch}\n```\n"
    )
    return files


def write_recipe(
    plan: TrainingPlan, folder: str, corpus: str, run_dir: str | None = None, devices_per_node: int = 8
) -> list[str]:
    """Writes the recipe of a plan.

    Args:
        plan (`TrainingPlan`): The plan.
        folder (`str`): Folder to make; it must not hold anything.
        corpus (`str`): The corpus.
        run_dir (`str`, *optional*): The run folder; `runs/` and the folder's name by default.
        devices_per_node (`int`, *optional*, defaults to 8): Devices of a machine.

    Returns:
        `list[str]`: Names of the files.

    Raises:
        UserError: If the folder holds something, or the plan cannot be launched.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"write = {folder}; it holds something already: name a new folder.")
    files = recipe_files(plan, corpus, run_dir or f"runs/{target.resolve().name}", devices_per_node)
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(target / name, text)
    write_json(target / "plan.json", json.loads(json.dumps(plan.to_dict(), allow_nan=False)))
    return [*files, "plan.json"]


def frontier_svg(run: RunPlan) -> str:
    """The loss of the frontier over compute, with the plan on it.

    Args:
        run (`RunPlan`): The plan.

    Returns:
        `str`: One `<svg>` document with its own colours.
    """
    from hf_pretrain.reporting.canvas import Canvas, Scale

    law = get_law(run.law)
    center = math.log10(run.flops)
    grid = [center - 3 + 6 * step / 60 for step in range(61)]
    best = [law.optimum(10**value).loss or 0.0 for value in grid]
    width, height, left, right, top, bottom = 720.0, 400.0, 60.0, 700.0, 40.0, 350.0
    canvas = Canvas(width, height, "Loss along the compute-optimal frontier, and the plan", "wide")
    low, high = min(*best, run.loss), max(*best, run.loss)
    pad = 0.06 * (high - low)
    x, y = Scale(grid[0], grid[-1], left, right), Scale(low - pad, high + pad, bottom, top)
    for value in y.ticks(5):
        canvas.line(left, y(value), right, y(value), "grid")
        canvas.text(left - 8, y(value) + 4, f"{value:.3g}", "end", "tick")
    for power in range(math.ceil(grid[0]), math.floor(grid[-1]) + 1):
        canvas.line(x(power), bottom, x(power), bottom + 4, "axis")
        canvas.text(x(power), bottom + 18, f"1e{power}", "middle", "tick")
    canvas.line(left, bottom, right, bottom, "axis")
    canvas.polyline([(x(value), y(loss)) for value, loss in zip(grid, best, strict=True)], "c1")
    canvas.circle(x(center), y(run.loss), 5, "c2", title=f"the plan: {run.loss:.4f} nats at {run.flops:.3g} FLOPs")
    label = f"plan: {format_count(run.parameters)} on {format_count(run.tokens)}, {run.loss:.3f} nats"
    canvas.text(x(center) + 10, y(run.loss) - 8, label, "start", "name")
    canvas.text(left, 20, f"nats a token, frontier of the law '{run.law}'", "start", "axis-title")
    canvas.text(right, bottom + 36, "FLOPs (6 N D)", "end", "axis-title")
    style = (
        "<style>svg{--c1:#2a6fb0;--c2:#c2410c;background:#fff;font:13px system-ui,sans-serif}"
        ".grid{stroke:#e5e5e5}.axis{stroke:#777}.curve{fill:none;stroke-width:2}.tick,.axis-title{fill:#555}"
        ".name{fill:#111}</style>"
    )
    drawing = canvas.render()
    end = drawing.index(">") + 1
    return drawing[:end] + style + drawing[end:]
