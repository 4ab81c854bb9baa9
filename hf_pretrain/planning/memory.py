"""What one device holds while training: states, activations, head and loss, and what is unsharded for a moment.

    total = weights + optimizer + communication + max of
        the loss:      gradients held already + activations + head and loss
        the backward:  gradients held already + activations + one layer again + its gradients
        the end of it: gradients + the first layer and its gradients, or the lookup's gradient beside a tied head's

Gradients are held already when a step accumulates more than one micro-batch. States are the ZeRO arithmetic (arXiv
1910.02054) over `Parallelism`; the largest pipeline stage counts. The sums are held to measured allocations of
Strata's steps in the tests; what the allocator wastes and the driver takes comes on top: leave a tenth of the device
free.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_pretrain.planning.activations import (
    COMPUTE_MODES,
    backward_bytes_per_token,
    last_norm_bytes_per_token,
    layer_bytes_per_token,
    stream_bytes_per_token,
)
from hf_pretrain.planning.counting import ModelShape
from hf_pretrain.planning.head_memory import head_memory
from hf_pretrain.planning.parallelism import Parallelism, check_division
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


HEADS = ("naive", "chunked", "liger")
CHECKPOINTING = ("none", "full")


@dataclass(frozen=True)
class StateRecipe:
    """Bytes a parameter costs, by what is kept of it.

    Args:
        weights (`int`): The weights the model computes with, or fp32 weights that are cast.
        gradients (`int`): Gradients.
        optimizer (`int`): Moments, and fp32 master weights where the weights are 16 bit.
        compute (`str`): Mode of the activations.
    """

    weights: int
    gradients: int
    optimizer: int
    compute: str


STATE_RECIPES: dict[str, StateRecipe] = {
    "fp32": StateRecipe(4, 4, 8, "fp32"),
    "autocast": StateRecipe(4, 4, 8, "autocast"),
    "fsdp_bf16": StateRecipe(4, 4, 8, "bf16"),  # FSDP2's mixed precision: fp32 shards, bf16 compute
    "bf16_master": StateRecipe(2, 2, 12, "bf16"),
    "bf16_master_fp32_gradients": StateRecipe(2, 4, 12, "bf16"),
    "bf16": StateRecipe(2, 2, 4, "bf16"),
    "bf16_8bit_adam": StateRecipe(2, 2, 6, "bf16"),
}


@dataclass(frozen=True)
class StateBytes:
    """States of one device.

    Args:
        weights (`float`): Bytes.
        gradients (`float`): Bytes.
        optimizer (`float`): Bytes.
    """

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """`float`: All three."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device that holds most.

    Args:
        weights (`float`): Its share of the weights.
        gradients (`float`): Its share of the gradients.
        optimizer (`float`): Its share of moments and master weights.
        activations (`float`): What waits for the backward pass when the loss is computed.
        head (`float`): Head and loss at their peak.
        backward (`float`): Gradients inside one layer, and the layer itself where it is computed again.
        communication (`float`): Unsharded layers, gradient buckets.
        total (`float`): Peak; less than the sum, because not all of it lives at once.
        peak (`str`): When it is reached: `"loss"`, `"backward"` or `"end"`.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    head: float
    backward: float
    communication: float
    total: float
    peak: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON.

        Returns:
            `dict`: All fields.
        """
        return asdict(self)


def state_bytes(parameters: float, recipe: str = "fsdp_bf16", strategy: str = "ddp", ranks: int = 1) -> StateBytes:
    """States of so many parameters under ZeRO.

    Args:
        parameters (`float`): Those of one model copy's part.
        recipe (`str`, *optional*, defaults to `"fsdp_bf16"`): One of `STATE_RECIPES`.
        strategy (`str`, *optional*, defaults to `"ddp"`): `"ddp"`, `"zero1"`, `"zero2"` or `"zero3"`.
        ranks (`int`, *optional*, defaults to 1): Ranks that share.

    Returns:
        `StateBytes`: Of one rank.

    Raises:
        UserError: If a name is unknown.
    """
    one = find_recipe(recipe)
    level = ("ddp", "zero1", "zero2", "zero3").index(Parallelism(strategy=strategy).strategy)
    return StateBytes(
        parameters * one.weights / (ranks if level >= 3 else 1),
        parameters * one.gradients / (ranks if level >= 2 else 1),
        parameters * one.optimizer / (ranks if level >= 1 else 1),
    )


def find_recipe(name: str) -> StateRecipe:
    """Looks a state recipe up.

    Args:
        name (`str`): One of `STATE_RECIPES`.

    Returns:
        `StateRecipe`: The recipe.

    Raises:
        UserError: If nobody knows it.
    """
    if name not in STATE_RECIPES:
        raise UserError(unknown_name_message("state recipe", name, STATE_RECIPES))
    return STATE_RECIPES[name]


def estimate_memory(
    model: ModelShape | Mapping[str, Any],
    seq_length: int,
    micro_batch: int = 1,
    accumulation: int = 1,
    parallelism: Parallelism | None = None,
    recipe: str = "fsdp_bf16",
    checkpointing: str = "none",
    head: str = "chunked",
    fused: bool = False,
    attention: str = "sdpa",
    device_type: str = "cuda",
) -> MemoryEstimate:
    """Estimates what a device holds at the peak of a step.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        seq_length (`int`): Tokens of a sequence.
        micro_batch (`int`, *optional*, defaults to 1): Sequences of a micro-batch on one data parallel rank.
        accumulation (`int`, *optional*, defaults to 1): Micro-batches of a step; pipeline stages hold several of them.
        parallelism (`Parallelism`, *optional*): One device by default.
        recipe (`str`, *optional*, defaults to `"fsdp_bf16"`): One of `STATE_RECIPES`.
        checkpointing (`str`, *optional*, defaults to `"none"`): `"none"`, or `"full"`: every layer is computed again.
        head (`str`, *optional*, defaults to `"chunked"`): `"naive"`, `"chunked"` or `"liger"`.
        fused (`bool`, *optional*, defaults to `False`): Whether norms, RoPE and SwiGLU are Liger's.
        attention (`str`, *optional*, defaults to `"sdpa"`): `"sdpa"` (or flash), `"eager"`.
        device_type (`str`, *optional*, defaults to `"cuda"`): Sets the chunk size of the chunked head.

    Returns:
        [`MemoryEstimate`]

    Raises:
        UserError: If a name is unknown, a number no positive whole one, or a degree does not divide the model.
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    plan = parallelism or Parallelism()
    for name, value in (("seq_length", seq_length), ("micro_batch", micro_batch), ("accumulation", accumulation)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} = {value!r}; a whole number of at least 1 is needed.")
    for kind, name, known in (("checkpointing", checkpointing, CHECKPOINTING), ("head", head, HEADS)):
        if name not in known:
            raise UserError(unknown_name_message(kind, name, known))
    check_division(shape, plan, seq_length)
    states_of = find_recipe(recipe)
    stages = (0,) if plan.pp == 1 else (0, plan.pp - 1)
    return max(
        (
            _stage(shape, plan, stage, seq_length, micro_batch, accumulation, states_of, recipe).estimate(
                checkpointing, head, fused, attention, device_type
            )
            for stage in stages
        ),
        key=lambda estimate: estimate.total,
    )


@dataclass(frozen=True)
class _Stage:
    """One pipeline stage of one rank: its layers and what it has beside them."""

    shape: ModelShape
    plan: Parallelism
    layers: tuple[int, ...]
    first: bool
    last: bool
    length: int
    tokens: float
    in_flight: int
    accumulates: bool
    states: StateRecipe
    recipe: str

    def estimate(self, checkpointing: str, head: str, fused: bool, attention: str, device_type: str) -> MemoryEstimate:
        shape, plan, compute = self.shape, self.plan, self.states.compute
        assert compute in COMPUTE_MODES
        sparse = set(shape.sparse_layers)
        # With sequence parallelism tensor parallel ranks divide the tokens between the products, so all of it shrinks.
        tokens = self.tokens / plan.tp
        stream = stream_bytes_per_token(shape, compute)
        on_cpu = device_type == "cpu"
        kinds = {index in sparse for index in self.layers}
        saved = {
            kind: layer_bytes_per_token(shape, kind, compute, fused, attention, self.length, on_cpu) for kind in kinds
        }
        working = max(backward_bytes_per_token(shape, kind, compute, on_cpu) for kind in kinds) * tokens
        waiting = sum(saved[index in sparse] for index in self.layers) * tokens
        largest = max(saved.values()) * tokens
        again = 0.0
        if checkpointing == "full":
            waiting = len(self.layers) * stream * tokens
            # A layer's input is what was kept, unless the norm makes a copy of its own.
            again = largest - (stream * tokens if fused or compute != "bf16" else 0.0)
        waiting *= self.in_flight
        head_peak = last_norm = head_gradient = 0.0
        if self.last:
            last_norm = last_norm_bytes_per_token(shape, compute, fused, on_cpu) * tokens
            head_peak = max(self._head(head, device_type), 4 * stream * tokens)
            head_gradient = shape.vocab_size * shape.hidden_size / plan.tp * self.states.gradients

        weights, gradients, optimizer, unsharded, layer_gradient = self._states()
        held = gradients if self.accumulates else 0.0
        lookup = 0.0
        if shape.tied and self.first and self.last:
            # The lookup's gradient is made beside the head's, and their sum beside the two.
            lookup = 2 * shape.vocab_size * shape.hidden_size / plan.tp * self.states.gradients
        fresh = 0.0 if self.accumulates else min(head_gradient, gradients) + layer_gradient
        # A dense feed-forward's gradients are made while the layer's activations go; a bank of experts' before.
        late = 0.0 if True in kinds else layer_gradient
        phases = {
            "loss": held + waiting + last_norm + head_peak,
            "backward": held + waiting + again + working + fresh,
            "end": gradients + max(lookup, largest + working - late),
        }
        backward = again + working
        waiting += last_norm
        peak = max(phases, key=phases.__getitem__)
        return MemoryEstimate(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=waiting,
            head=head_peak,
            backward=backward,
            communication=unsharded,
            total=weights + optimizer + unsharded + phases[peak],
            peak=peak,
        )

    def _head(self, head: str, device_type: str) -> float:
        """Bytes at the head's peak; tensor parallel ranks hold a part of the vocabulary each."""
        shape, compute = self.shape, self.states.compute
        memory = head_memory(
            max(1, round(self.tokens)),
            -(-shape.vocab_size // self.plan.tp),
            shape.hidden_size,
            "float32" if compute == "fp32" else "bfloat16",
            "bfloat16" if compute == "bf16" else "float32",
            device_type,
        )
        return float(getattr(memory, head))

    def _states(self) -> tuple[float, float, float, float, float]:
        """Weights, gradients, optimizer, what is unsharded or buffered for a moment, gradients of one layer."""
        plan = self.plan
        dense, experts, layer = self._counts()
        level = ("ddp", "zero1", "zero2", "zero3").index(plan.strategy)
        common = state_bytes(dense, self.recipe, plan.strategy, plan.shards)
        # Experts are divided over ep first; what shards them further are the ranks that hold the same ones.
        routed = state_bytes(experts / plan.ep, self.recipe, plan.strategy, max(plan.shards // plan.ep, 1))
        item = 4 if self.states.compute == "fp32" else 2
        extra = 0.0
        if level == 3 and plan.shards > 1:
            extra = 3 * layer * item  # the layer at work, the one fetched ahead, one layer's gradients
        elif plan.dp_replicate * plan.shards > 1:
            extra = common.gradients + routed.gradients  # DDP's buckets hold every gradient once more
        return (
            common.weights + routed.weights,
            common.gradients + routed.gradients,
            common.optimizer + routed.optimizer,
            extra,
            layer * self.states.gradients,
        )

    def _counts(self) -> tuple[float, float, float]:
        """Parameters of this stage on one tensor parallel rank: all but routed experts, those, the largest layer."""
        shape, tp = self.shape, self.plan.tp
        hidden = shape.hidden_size
        query = shape.num_heads * shape.head_dim / tp
        key = max(shape.num_kv_heads / tp, 1) * shape.head_dim
        attention = 2 * hidden * query + 2 * hidden * key
        small = (
            shape.norms_per_layer * hidden + {"head": 2 * shape.head_dim, "full": query + key, None: 0}[shape.qk_norm]
        )
        small += (query + 2 * key) * shape.qkv_bias + hidden * shape.o_bias
        sparse = set(shape.sparse_layers)
        dense = routed = largest = 0.0
        for index in self.layers:
            layer = attention + small
            bank = 0.0
            if index in sparse:
                layer += hidden * shape.num_experts * (2 if shape.learned_router_noise else 1)
                layer += 3 * hidden * shape.shared_width / tp
                bank = 3 * hidden * shape.expert_width * shape.num_experts / tp
            else:
                layer += 3 * hidden * shape.intermediate_size / tp
            dense, routed = dense + layer, routed + bank
            largest = max(largest, layer + bank / self.plan.ep)
        matrix = shape.vocab_size * hidden / tp
        if self.first or (self.last and shape.tied):
            dense += matrix
        if self.last:
            dense += hidden + (0 if shape.tied else matrix)
        return dense, routed, largest


def _stage(
    shape: ModelShape,
    plan: Parallelism,
    stage: int,
    seq_length: int,
    micro_batch: int,
    accumulation: int,
    states: StateRecipe,
    recipe: str,
) -> _Stage:
    """The layers of a stage and the micro-batches that 1F1B has in flight there."""
    size = shape.num_layers // plan.pp
    return _Stage(
        shape=shape,
        plan=plan,
        layers=tuple(range(stage * size, (stage + 1) * size)),
        first=stage == 0,
        last=stage == plan.pp - 1,
        length=seq_length,
        tokens=micro_batch * seq_length / plan.cp,
        in_flight=min(plan.pp - stage, accumulation),
        accumulates=accumulation > 1,
        states=states,
        recipe=recipe,
    )
