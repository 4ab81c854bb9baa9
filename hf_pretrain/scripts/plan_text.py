"""The model's part of a plan, for people: shape, steps, stages, the head, memory, layouts, advice."""

import textwrap

from hf_pretrain.planning.quantities import format_count
from hf_pretrain.planning.training_plan import TrainingPlan
from hf_pretrain.utils.number_text import size


def model_lines(plan: TrainingPlan) -> list[str]:
    """Writes what a plan says of the model.

    Args:
        plan (`TrainingPlan`): From [`make_training_plan`].

    Returns:
        `list[str]`: Lines.
    """
    model, counts = plan.model, plan.counts
    heads = f"{model.get('num_attention_heads')} heads, {model.get('num_key_value_heads')} of keys"
    lines = ["", "beside it", *(_reference(one.name, one.tokens_per_parameter) for one in plan.references)]
    lines += [
        "",
        "model and steps",
        f"  {'parameters':<16} {counts.total:,}; {counts.active:,} active, {counts.embedding_share:.1%} embeddings",
        f"  {'shape':<16} {model['num_hidden_layers']} layers of {model['hidden_size']}, {heads}, "
        f"vocabulary {model['vocab_size']}",
        f"  {'updates':<16} {plan.steps:,} of {plan.global_batch} sequences of {plan.seq_length} tokens",
        f"  {'peak rate':<16} {plan.learning_rate:.2e} ({plan.learning_rate_law}, the lower) after "
        f"{plan.warmup_steps} updates of warm-up",
        f"  {'compute':<16} {plan.flops_with_attention:.3g} FLOPs with causal attention (matmul_causal)",
    ]
    for stage in plan.stages:
        lines.append(
            f"  {stage.name:<16} {format_count(stage.tokens)} tokens at {stage.seq_length}, "
            f"{stage.compute_share:.1%} of the compute"
        )
    head = plan.head
    lines += ["", f"head and loss of {head.num_tokens:,} tokens"]
    for name in ("naive", "chunked", "liger"):
        lines.append(f"  {name:<16} {size(getattr(head, name))}")
    if plan.memory is not None:
        memory = plan.memory
        lines += [
            "",
            "memory of one device, one sequence, nothing sharded (autocast)",
            f"  {'total':<16} {size(memory.total)}: weights {size(memory.weights)}, "
            f"gradients {size(memory.gradients)}, optimizer {size(memory.optimizer)}, "
            f"activations {size(memory.activations)}",
        ]
    if plan.layouts is not None:
        lines += ["", f"layouts, best of {plan.layouts.considered:,}"]
        lines.append(f"  {'division':<50} {'batch':>9} {'again':>6} {'memory':>9} {'step':>8} {'MFU':>5}  why")
        for one in plan.layouts.layouts:
            batch = f"{one.micro_batch:>4} x {one.accumulation:<4}"
            lines.append(
                f"  {one.parallelism.describe():<50} {batch}{one.checkpointing:>6} {size(one.memory.total):>9} "
                f"{one.time.total:>7.2f}s {one.mfu:>4.0%}  {one.reason()}"
            )
        best = plan.layouts.launchable
        launch = "none of those that fit" if best is None else best.parallelism.describe()
        lines.append(f"  {'to launch':<16} {launch}")
        lines += [f"  {'fell out':<16} {number:,}: {reason}" for reason, number in plan.layouts.rejected.items()]
    if plan.advice:
        lines += ["", "advice"]
        for one in plan.advice:
            text = f"  {one.topic:<16} {one.choice}: {one.reason}"
            lines += textwrap.wrap(text, 118, subsequent_indent=" " * 19, drop_whitespace=True)
    return lines


def _reference(name: str, ratio: float) -> str:
    return f"  {name:<16} {ratio:.3g} tokens a parameter"
