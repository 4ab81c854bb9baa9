"""The whole plan of a run: what `run_plan.py` says of size and tokens, and the model, steps, memory and layout for it.

Choices, all overridable: the batch of StepLaw (arXiv 2503.04715), the lowest peak rate of the laws, a warm-up, stable
and decay schedule with the last tenth of the tokens as the anneal, a chunked or Liger head.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_pretrain.planning.advice import Advice, advise
from hf_pretrain.planning.compute import DEFAULT_CONVENTION, training_flops_per_token
from hf_pretrain.planning.cost import Cluster
from hf_pretrain.planning.counting import ModelShape, ParameterCount, count_parameters
from hf_pretrain.planning.head_memory import HeadMemory, head_memory
from hf_pretrain.planning.layout import LayoutSearch, Network, search_layouts
from hf_pretrain.planning.memory import MemoryEstimate, estimate_memory
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.planning.references import ReferenceModel, nearest_references
from hf_pretrain.planning.run_plan import RunPlan
from hf_pretrain.utils.errors import UserError


DEFAULT_SEQ_LENGTH = 4096
DEFAULT_ANNEAL = 0.1
DEFAULT_LONG_SHARE = 0.05  # of the tokens, as Llama 3 did


@dataclass(frozen=True)
class Stage:
    """A part of the run.

    Args:
        name (`str`): `"stable"`, `"anneal"` or `"long context"`.
        tokens (`float`): Its tokens.
        seq_length (`int`): Its length.
        compute_share (`float`): Share of the run's FLOPs, attention counted.
    """

    name: str
    tokens: float
    seq_length: int
    compute_share: float


@dataclass(frozen=True)
class TrainingPlan:
    """A plan that can be launched.

    Args:
        run (`RunPlan`): Size, tokens, laws, time and cost.
        model (`dict`): Configuration.
        counts (`ParameterCount`): Of the model.
        seq_length (`int`): Tokens of a sequence.
        global_batch (`int`): Sequences of an update.
        steps (`int`): Updates.
        learning_rate (`float`): Peak: the lowest of the laws that give one.
        learning_rate_law (`str`): Which one.
        warmup_steps (`int`): Updates that warm up.
        stages (`tuple[Stage, ...]`): With their shares of the compute.
        flops_with_attention (`float`): Of the run by `matmul_causal`.
        head (`HeadMemory`): Bytes of the head for a micro-batch.
        memory (`MemoryEstimate`, *optional*): Of one device without a layout.
        layouts (`LayoutSearch`, *optional*): Where devices are given.
        references (`tuple[ReferenceModel, ...]`): Published models with a like ratio.
        advice (`tuple[Advice, ...]`): Decisions with their rules.
        warnings (`tuple[str, ...]`): What to mind beside the run's own.
    """

    run: RunPlan
    model: dict[str, Any]
    counts: ParameterCount
    seq_length: int
    global_batch: int
    steps: int
    learning_rate: float
    learning_rate_law: str
    warmup_steps: int
    stages: tuple[Stage, ...]
    flops_with_attention: float
    head: HeadMemory
    memory: MemoryEstimate | None
    layouts: LayoutSearch | None
    references: tuple[ReferenceModel, ...]
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON: the run's own fields, and the rest beside them.

        Returns:
            `dict`: All fields.
        """
        return self.run.to_dict() | {
            "model": self.model,
            "parameter_counts": asdict(self.counts),
            "seq_length": self.seq_length,
            "global_batch_size": self.global_batch,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "learning_rate_law": self.learning_rate_law,
            "warmup_steps": self.warmup_steps,
            "stages": [asdict(stage) for stage in self.stages],
            "flops_with_attention": self.flops_with_attention,
            "attention_convention": DEFAULT_CONVENTION,
            "head_memory": self.head.to_dict(),
            "memory": None if self.memory is None else self.memory.to_dict(),
            "layout_search": None if self.layouts is None else self.layouts.to_dict(),
            "references": [
                asdict(one) | {"tokens_per_parameter": one.tokens_per_parameter} for one in self.references
            ],
            "advice": [asdict(one) for one in self.advice],
            "warnings": [*self.run.warnings, *self.warnings],
        }


def make_training_plan(
    run: RunPlan,
    model: Mapping[str, Any],
    cluster: Cluster | None = None,
    network: Network | None = None,
    seq_length: int = DEFAULT_SEQ_LENGTH,
    global_batch: int | None = None,
    anneal: float = DEFAULT_ANNEAL,
    long_context: int | None = None,
    long_share: float = DEFAULT_LONG_SHARE,
    head: str = "chunked",
    fused: bool = False,
) -> TrainingPlan:
    """Completes a plan for a model.

    Args:
        run (`RunPlan`): From [`make_plan`].
        model (`Mapping[str, Any]`): Configuration.
        cluster (`Cluster`, *optional*): Devices; their layout is searched.
        network (`Network`, *optional*): Wiring.
        seq_length (`int`, *optional*, defaults to 4096): Tokens of a sequence.
        global_batch (`int`, *optional*): Sequences of an update; by StepLaw by default.
        anneal (`float`, *optional*, defaults to 0.1): Share of the tokens over which the rate decays.
        long_context (`int`, *optional*): Length of a last stage.
        long_share (`float`, *optional*, defaults to 0.05): Its share of the tokens.
        head (`str`, *optional*, defaults to `"chunked"`): `"naive"`, `"chunked"` or `"liger"`.
        fused (`bool`, *optional*, defaults to `False`): Whether Liger's kernels run.

    Returns:
        [`TrainingPlan`]

    Raises:
        UserError: If a number cannot be right, or no layout works.
    """
    shape = ModelShape.from_config(model)
    counts = count_parameters(shape)
    for name, share in (("anneal", anneal), ("long_share", long_share)):
        if not 0 <= share < 1:
            raise UserError(f"{name} = {share!r}; a share from 0 up to (not including) 1 is needed.")
    for name, value in (("seq_length", seq_length), ("long_context", long_context), ("global_batch", global_batch)):
        if value is not None and value < 1:
            raise UserError(f"{name} = {value!r}; a whole number of at least 1 is needed.")
    if long_context is not None and long_context <= seq_length:
        raise UserError(f"long_context = {long_context}; it must be longer than seq_length = {seq_length}.")
    law = next(one for one in run.step_sizes if one.law == "step_law")
    assert law.batch_tokens is not None
    # The laws part ways far from where they were fitted; too high a rate diverges, too low a one only costs.
    rate = min((one for one in run.step_sizes if one.learning_rate), key=lambda one: one.learning_rate or 0.0)
    batch = global_batch or _batch(law.batch_tokens / seq_length, cluster)
    steps = math.ceil(run.tokens / (batch * seq_length))
    stages, flops = _stages(shape, run.tokens, seq_length, anneal, long_context, long_share)
    warnings = []
    if steps < 100:
        warnings.append(f"{steps} updates are few: the learning rate has no time; take a smaller batch.")
    if shape.num_experts:
        warnings.append("the laws are for dense models: N is the active parameters; experts gain on top (advisory).")
    layouts = memory = None
    micro_batch = 1
    if cluster is not None:
        layouts = search_layouts(shape, cluster, seq_length, batch, network, head=head, fused=fused)
        micro_batch = layouts.layouts[0].micro_batch
    else:
        memory = estimate_memory(shape, seq_length, 1, max(batch, 1), head=head, fused=fused, recipe="autocast")
    suggestions = advise(
        run.tokens,
        active=ModelSize(counts.active, "active"),
        non_embedding=ModelSize(counts.non_embedding, "non_embedding"),
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        unique_tokens=None if run.repeats is None else run.repeats.unique_tokens,
        steps=steps,
    )
    return TrainingPlan(
        run=run,
        model=dict(model),
        counts=counts,
        seq_length=seq_length,
        global_batch=batch,
        steps=steps,
        learning_rate=float(rate.learning_rate or 0.0),
        learning_rate_law=rate.law,
        warmup_steps=_warmup(suggestions, steps),
        stages=stages,
        flops_with_attention=flops,
        head=head_memory(micro_batch * seq_length, shape.vocab_size, shape.hidden_size),
        memory=memory,
        layouts=layouts,
        references=tuple(nearest_references(run.tokens_per_parameter)),
        advice=tuple(suggestions),
        warnings=tuple(warnings),
    )


def _warmup(suggestions: Sequence[Advice], steps: int) -> int:
    """The advice's steps of warm-up."""
    chosen = next((one.choice for one in suggestions if one.topic == "warm-up"), "")
    return int(chosen.split()[0]) if chosen else max(1, round(0.01 * steps))


def _batch(sequences: float, cluster: Cluster | None) -> int:
    """A power of two near the law's batch, or a multiple of the devices where those are no power of two."""
    batch = 2 ** max(0, round(math.log2(max(sequences, 1.0))))
    if cluster is None:
        return batch
    devices = cluster.num_devices
    return batch if batch % devices == 0 else max(1, round(sequences / devices)) * devices


def _stages(
    shape: ModelShape, tokens: float, seq_length: int, anneal: float, long_context: int | None, long_share: float
) -> tuple[tuple[Stage, ...], float]:
    parts = [("stable", 1 - anneal, seq_length), ("anneal", anneal, seq_length)]
    if long_context is not None:
        parts = [(name, share * (1 - long_share), length) for name, share, length in parts]
        parts.append(("long context", long_share, long_context))
    work = [share * tokens * training_flops_per_token(shape, length) for _, share, length in parts]
    total = sum(work)
    stages = tuple(
        Stage(name, share * tokens, length, flops / total)
        for (name, share, length), flops in zip(parts, work, strict=True)
        if share > 0
    )
    return stages, total
