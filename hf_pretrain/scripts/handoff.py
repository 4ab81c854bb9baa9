"""`hf-pretrain handoff`: a trained Strata for a framework with pipeline parallelism, which transformers lacks.

Writes a folder: `model/` (a stock Llama, Qwen3 or Qwen3-MoE checkpoint, its logits checked against the original),
`handoff.json` (layout, what each stage holds, the recipe's settings, the limits) and one script for the framework.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.scripts.export import export_checkpoint, find_checkpoint
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


FRAMEWORKS = ("torchtitan", "megatron")

LIMITS = {
    "torchtitan": [
        "Checked here: the checkpoint's logits, and which stage holds which tensor. TorchTitan was not run.",
        "TorchTitan's transformers backend is an experiment, pinned to its own version of transformers.",
        "It has no pipeline parallelism for experts, and its loss has neither z-loss nor a router z-loss.",
        "A tied head would live on two stages: tied models are handed over for one stage only.",
        "Moments of the optimizer and the place in the data stay behind: begin with a short warm-up and new data.",
    ],
    "megatron": [
        "Checked here: the checkpoint's logits, and which stage holds which tensor. Megatron-Bridge was not run.",
        "Megatron-Bridge sets its own coefficient of the balance loss; the script sets the model's own again.",
        "Megatron's balance loss is over a micro-batch; balance_scope, loss-free bias and capacity do not travel.",
        "Moments of the optimizer and the place in the data stay behind: begin with a short warm-up and new data.",
    ],
}

TORCHTITAN = '''"""A TorchTitan configuration for the model beside this file; made by hf-pretrain handoff.

Copy the function into torchtitan/experiments/transformers_modeling_backend/config_registry.py, then:
MODULE=transformers_modeling_backend CONFIG=handed_over ./run_train.sh --parallelism.pipeline_parallel_degree {pp}
"""

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.experiments.transformers_modeling_backend import model_registry
from torchtitan.experiments.transformers_modeling_backend.configs import TransformersBackendConfig

MODEL = {model!r}  # EDIT if you move the folder


def handed_over():
    return TransformersBackendConfig(
        loss=CrossEntropyLoss.Config(),
        hf_model=MODEL,
        hf_assets_path=MODEL,
        model_spec=model_registry("full"),
        optimizer=OptimizersContainer.Config(lr={learning_rate}),
        # EDIT: batch and steps, and give a dataloader of your own
        training=TrainingConfig(local_batch_size={batch}, seq_len={seq_length}, steps={steps}),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree={pp},
            tensor_parallel_degree={tp},
            expert_parallel_degree={ep},
            pipeline_parallel_schedule="1F1B",
        ),
        checkpoint=CheckpointManager.Config(enable=True, initial_load_in_hf=True, initial_load_model_only=True),
    )
'''

MEGATRON = '''"""Converts the model beside this file to a Megatron checkpoint; made by hf-pretrain handoff.

Needs Megatron-Bridge. Run once: python to_megatron.py OUT. Then train from OUT, with
`provider()` as the model of a Megatron-Bridge recipe.
"""

import sys

from megatron.bridge import AutoBridge

MODEL = {model!r}  # EDIT if you move the folder


def provider():
    made = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider()
    made.pipeline_model_parallel_size = {pp}
    made.tensor_model_parallel_size = {tp}
    made.expert_model_parallel_size = {ep}
    made.seq_length = {seq_length}
{balance}    return made


if __name__ == "__main__":
    AutoBridge.import_ckpt(MODEL, sys.argv[1])
'''


def check_sizes(config: Any, framework: str, sizes: dict[str, int]) -> None:
    """Makes sure that the framework can divide the model so.

    Args:
        config (`StrataConfig`): The model's configuration.
        framework (`str`): `"torchtitan"` or `"megatron"`.
        sizes (`dict[str, int]`): `pp`, `tp` and `ep`.

    Raises:
        UserError: Naming the size, what is allowed and what to do.
    """
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"--{name} {size}; allowed are whole numbers from 1 up.")
    pp, tp, ep = sizes["pp"], sizes["tp"], sizes["ep"]
    if config.num_hidden_layers % pp:
        raise UserError(f"--pp {pp}; it must divide the {config.num_hidden_layers} layers.")
    if config.num_key_value_heads % tp:
        raise UserError(f"--tp {tp}; it must divide the {config.num_key_value_heads} key-value heads.")
    if ep > 1 and (config.num_experts == 0 or config.num_experts % ep):
        raise UserError(f"--ep {ep}; it must divide the {config.num_experts} experts.")
    if framework == "torchtitan" and pp > 1 and config.num_experts:
        raise UserError(f"--pp {pp}; TorchTitan's transformers backend pipelines no experts: use --pp 1 or megatron.")
    if framework == "torchtitan" and pp > 1 and config.tie_word_embeddings:
        raise UserError(f"--pp {pp}; a tied head would live on two stages: use --pp 1 or megatron, which shares it.")
    if config.num_experts and not config.use_qk_norm:
        raise UserError("use_qk_norm = False; a model with experts is handed over as Qwen3-MoE, which has QK-norms.")


def hand_over(source: Path, framework: str, out: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """Writes the folder, whole or not at all.

    Args:
        source (`Path`): Folder of a Strata; where it lies in a stage's folder, the stage's settings go along.
        framework (`str`): `"torchtitan"` or `"megatron"`.
        out (`Path`): Folder to make.
        sizes (`dict[str, int]`): `pp`, `tp` and `ep`.

    Returns:
        `dict`: What `handoff.json` holds.

    Raises:
        UserError: If the folder is taken, or the framework cannot hold or divide the model.
    """
    from safetensors import safe_open

    from hf_pretrain.models.pipeline_stages import pipeline_stages
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.utils.atomic import atomic_directory, write_json, write_text

    if framework not in FRAMEWORKS:
        raise UserError(unknown_name_message("framework", framework, FRAMEWORKS))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"OUT = {out}; it exists already: give another folder, or remove it.")
    config = StrataConfig.from_pretrained(source)
    check_sizes(config, framework, sizes)
    architecture = "qwen3_moe" if config.num_experts else "qwen3" if config.use_qk_norm else "llama"
    settings = stage_settings(source)
    with atomic_directory(out) as staging:
        class_name, difference = export_checkpoint(source, architecture, staging / "model")
        shapes = {}
        for path in sorted((staging / "model").glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                shapes |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        stages = pipeline_stages(shapes, config.num_hidden_layers, sizes["pp"])
        values = {
            "model": str(out.resolve() / "model"),
            "learning_rate": settings.get("learning_rate", 3e-4),
            "seq_length": settings.get("seq_length", config.max_position_embeddings),
            "batch": 1,
            "steps": settings.get("max_steps", 1000),
            "balance": f"    made.moe_aux_loss_coeff = {config.router_aux_loss_coef}\n" if config.num_experts else "",
            **sizes,
        }
        name, text = (
            ("torchtitan_config.py", TORCHTITAN) if framework == "torchtitan" else ("to_megatron.py", MEGATRON)
        )
        write_text(staging / name, text.format(**values))
        record = {
            "schema": 1,
            "framework": framework,
            "class": class_name,
            "largest_logit_difference": difference,
            "layout": sizes,
            "stages": stages,
            "settings": settings,
            "limits": LIMITS[framework],
        }
        write_json(staging / "handoff.json", record)
    return record


def stage_settings(source: Path) -> dict[str, Any]:
    """Reads the settings that a stage trained with.

    Args:
        source (`Path`): The stage's `model/`.

    Returns:
        `dict`: Learning rate, sequence length and so on; empty where there is no checkpoint beside the model.
    """
    manifests = (source.parent / "checkpoints").glob("checkpoint-*/*.json")
    for path in sorted(manifests, reverse=True):
        try:
            stored = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(stored, dict) and isinstance(stored.get("settings"), dict):
            return stored["settings"]
    return {}


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain handoff`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain handoff",
        description="Write a Strata's weights and recipe for pipeline-parallel training elsewhere.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a stage's folder, its model/, or any Strata")
    parser.add_argument("--to", required=True, metavar="FRAMEWORK", help="torchtitan or megatron")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    for name, what in (("pp", "pipeline stages"), ("tp", "tensor-parallel ranks"), ("ep", "expert-parallel ranks")):
        parser.add_argument(f"--{name}", type=int, default=1, metavar="N", help=f"{what} (1)")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        sizes = {name: getattr(arguments, name) for name in ("pp", "tp", "ep")}
        record = hand_over(find_checkpoint(arguments.checkpoint), arguments.to, arguments.out, sizes)
        print(f"{arguments.out}: {record['class']}, {len(record['stages'])} stage(s) of", end=" ")
        print(", ".join(f"{stage['parameters']:,}" for stage in record["stages"]), "parameters")
        print("\n".join(f"- {limit}" for limit in record["limits"]))

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())
