"""A search over layouts: how a model is divided over a cluster, so that it fits and is fast.

For every division of the devices the micro-batches and recomputations are tried in `memory.py`; what fits gets a step
time:

    compute      FLOPs of the hardware / (peak * efficiency)
    FSDP         three collectives of the weights a micro-batch; hidden behind the compute, but for what exceeds it
    replicas     one all-reduce of the gradients a step, hidden behind the last backward pass
    TP, EP       in the way of the compute: nothing hides them;  CP hides behind the attention
    pipeline     the bubble stretches the whole

The figures rank layouts and say why; they are no benchmark. `efficiency` is what kernels reach of the peak when they
wait for nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_pretrain.planning.compute import attention_flops_per_token, hardware_flops_per_token, training_flops_per_token
from hf_pretrain.planning.cost import Cluster
from hf_pretrain.planning.counting import ModelShape, count_parameters
from hf_pretrain.planning.hardware import DEFAULT_NETWORK_GBS
from hf_pretrain.planning.memory import MemoryEstimate, estimate_memory, find_recipe
from hf_pretrain.planning.parallelism import (
    Parallelism,
    all_reduce_bytes,
    context_parallel_bytes,
    division_errors,
    expert_parallel_bytes,
    gather_bytes,
    pipeline_bubble,
    tensor_parallel_bytes,
)
from hf_pretrain.utils.errors import UserError


DEFAULT_EFFICIENCY = 0.5
USABLE_MEMORY = 0.9  # the rest is the driver's, NCCL's and lost between blocks
_HIDDEN_BY_COMPUTE = 0.9
_BACKWARD_SHARE = 2 / 3
_LONGEST_PIPELINE = 32
_CONTEXT_FROM = 32768  # below this length the other degrees do
_EQUAL = 0.03  # the model of the step time is no better than this
_LARGEST_MICRO_BATCH = 64


@dataclass(frozen=True)
class Network:
    """How the devices are wired.

    Args:
        devices_per_node (`int`, *optional*, defaults to 8): Devices of one machine.
        link_gbs (`float`, *optional*): GB/s a device sends inside its machine; the device's own by default.
        network_gbs (`float`, *optional*, defaults to 50.0): GB/s a device sends to other machines.

    Raises:
        UserError: If a number is not positive.
    """

    devices_per_node: int = 8
    link_gbs: float | None = None
    network_gbs: float = DEFAULT_NETWORK_GBS

    def __post_init__(self) -> None:
        if isinstance(self.devices_per_node, bool) or not isinstance(self.devices_per_node, int):
            raise UserError(f"gpus_per_node = {self.devices_per_node!r}; a whole number is needed.")
        for name, value in (("gpus_per_node", self.devices_per_node), ("network_gbs", self.network_gbs)):
            if not 0 < value < math.inf:
                raise UserError(f"{name} = {value!r}; a positive number is needed.")
        if self.link_gbs is not None and not 0 < self.link_gbs < math.inf:
            raise UserError(f"link_gbs = {self.link_gbs!r}; a positive number is needed.")


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, on one device.

    Args:
        compute (`float`): Matrix products and attention, recomputation included.
        sharding (`float`): FSDP's collectives that are not hidden.
        replication (`float`): The gradients' all-reduce that is not hidden.
        tensor (`float`): Tensor parallel collectives.
        context (`float`): Ring attention that is not hidden.
        expert (`float`): All-to-alls.
        bubble (`float`): Waiting of the pipeline.
    """

    compute: float
    sharding: float
    replication: float
    tensor: float
    context: float
    expert: float
    bubble: float

    @property
    def total(self) -> float:
        """`float`: Seconds."""
        return sum(asdict(self).values())

    def largest_wait(self) -> tuple[str, float]:
        """What costs most beside the compute.

        Returns:
            `tuple[str, float]`: Its name and its share of the step.
        """
        waits = {name: value for name, value in asdict(self).items() if name != "compute"}
        name = max(waits, key=waits.__getitem__)
        return name, waits[name] / self.total


@dataclass(frozen=True)
class Layout:
    """One way to run.

    Args:
        parallelism (`Parallelism`): Degrees.
        micro_batch (`int`): Sequences of a micro-batch on one data parallel rank.
        accumulation (`int`): Micro-batches of a step.
        checkpointing (`str`): `"none"` or `"full"`.
        memory (`MemoryEstimate`): On the fullest device.
        time (`StepTime`): Of a step.
        tokens_per_second (`float`): Of the whole cluster.
        mfu (`float`): Of the model's FLOPs with causal attention, without recomputation.
    """

    parallelism: Parallelism
    micro_batch: int
    accumulation: int
    checkpointing: str
    memory: MemoryEstimate
    time: StepTime
    tokens_per_second: float
    mfu: float

    def reason(self) -> str:
        """Why it stands where it does.

        Returns:
            `str`: One line.
        """
        name, share = self.time.largest_wait()
        wait = f"{share:.0%} of the step waits for {name}" if share >= 0.005 else "nothing waits"
        again = "" if self.checkpointing == "none" else ", a quarter of the work is recomputation"
        return f"{wait}{again}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON.

        Returns:
            `dict`: All fields, the step's seconds and the reason.
        """
        return asdict(self) | {"step_seconds": self.time.total, "reason": self.reason()}


@dataclass(frozen=True)
class LayoutSearch:
    """What a search found.

    Args:
        layouts (`tuple[Layout, ...]`): The best, each of another division, fastest first.
        launchable (`Layout`, *optional*): The fastest that `accelerate` and this package's trainer can launch.
        considered (`int`): Layouts looked at.
        rejected (`dict[str, int]`): How many fell out, by reason.
    """

    layouts: tuple[Layout, ...]
    launchable: Layout | None
    considered: int
    rejected: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON.

        Returns:
            `dict`: All fields.
        """
        return {
            "layouts": [layout.to_dict() for layout in self.layouts],
            "launchable": None if self.launchable is None else self.launchable.to_dict(),
            "considered": self.considered,
            "rejected": self.rejected,
        }


def launch_problem(plan: Parallelism) -> str | None:
    """Why a division cannot be launched with `accelerate` and this package's trainer.

    Args:
        plan (`Parallelism`): The degrees.

    Returns:
        `str`, *optional*: The reason; `None` where it can.
    """
    if plan.pp > 1:
        return "the Trainer has no pipeline parallelism"
    if plan.ep > 1:
        return "the Trainer has no expert parallelism"
    if plan.tp > 1 and plan.cp > 1:
        return "accelerate does not combine tensor and context parallelism"
    return None


def search_layouts(
    model: ModelShape | Mapping[str, Any],
    cluster: Cluster,
    seq_length: int,
    global_batch: int,
    network: Network | None = None,
    recipe: str = "fsdp_bf16",
    head: str = "chunked",
    fused: bool = False,
    efficiency: float = DEFAULT_EFFICIENCY,
    usable_memory: float = USABLE_MEMORY,
    best: int = 5,
) -> LayoutSearch:
    """Looks for the fastest layouts that fit.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        cluster (`Cluster`): Devices.
        seq_length (`int`): Tokens of a sequence.
        global_batch (`int`): Sequences of an optimizer step.
        network (`Network`, *optional*): Wiring; eight devices a node by default.
        recipe (`str`, *optional*, defaults to `"fsdp_bf16"`): One of `memory.STATE_RECIPES`.
        head (`str`, *optional*, defaults to `"chunked"`): `"naive"`, `"chunked"` or `"liger"`.
        fused (`bool`, *optional*, defaults to `False`): Whether norms, RoPE and SwiGLU are Liger's.
        efficiency (`float`, *optional*, defaults to 0.5): Of kernels that wait for nothing, as a share of the peak.
        usable_memory (`float`, *optional*, defaults to 0.9): Share of a device's memory to fill.
        best (`int`, *optional*, defaults to 5): How many to return.

    Returns:
        [`LayoutSearch`]

    Raises:
        UserError: If a number cannot be right, or nothing fits: with the reasons.
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    wiring = network or Network()
    find_recipe(recipe)
    for name, value in (("seq_length", seq_length), ("global_batch", global_batch), ("best", best)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} = {value!r}; a whole number of at least 1 is needed.")
    for name, share in (("efficiency", efficiency), ("usable_memory", usable_memory)):
        if not 0 < share <= 1:
            raise UserError(f"{name} = {share!r}; a share between 0 and 1 is needed.")
    nodes = cluster.num_devices / wiring.devices_per_node
    if nodes > 1 and nodes != int(nodes):
        raise UserError(
            f"gpus = {cluster.num_devices}; they do not fill nodes of {wiring.devices_per_node}: give gpus_per_node."
        )
    limit = usable_memory * cluster.device.memory_gb * 1e9
    rejected: Counter[str] = Counter()
    considered = 0
    smallest = math.inf
    found: dict[Parallelism, Layout] = {}
    for plan in _divisions(shape, cluster.num_devices, wiring.devices_per_node, seq_length):
        errors = division_errors(shape, plan, seq_length)
        if errors:
            considered += 1
            rejected[_kind(errors[0])] += 1
            continue
        if global_batch % plan.data_parallel:
            considered += 1
            rejected["the global batch does not divide by the data parallel ranks"] += 1
            continue
        sequences = global_batch // plan.data_parallel
        for checkpointing in ("none", "full"):
            micro_batch = 1
            while micro_batch <= min(sequences, _LARGEST_MICRO_BATCH):
                if sequences % micro_batch:
                    break
                considered += 1
                steps = sequences // micro_batch
                memory = estimate_memory(
                    shape, seq_length, micro_batch, steps, plan, recipe, checkpointing, head, fused
                )
                smallest = min(smallest, memory.total)
                if memory.total > limit:
                    rejected["it does not fit in memory"] += 1
                    break  # a larger micro-batch holds more
                layout = _timed(
                    shape, cluster, wiring, plan, seq_length, micro_batch, steps, checkpointing, memory, efficiency
                )
                known = found.get(plan)
                if known is None or _rank(layout) > _rank(known):
                    found[plan] = layout
                micro_batch *= 2
    if not found:
        why = "; ".join(f"{number} x {reason}" for reason, number in rejected.most_common())
        least = "" if smallest == math.inf else f" The least needs {smallest / 1e9:,.0f} GB of {limit / 1e9:,.0f}."
        raise UserError(f"gpus = {cluster.num_devices}x{cluster.device.name}; no layout works: {why}.{least}")
    ranked = sorted(found.values(), key=_rank, reverse=True)
    slower = considered - sum(rejected.values()) - min(best, len(ranked))
    rejected["it is slower than those shown"] = slower
    launchable = next((layout for layout in ranked if launch_problem(layout.parallelism) is None), None)
    return LayoutSearch(tuple(ranked[:best]), launchable, considered, {k: v for k, v in rejected.items() if v > 0})


def estimate_step(
    model: ModelShape | Mapping[str, Any],
    cluster: Cluster,
    parallelism: Parallelism,
    seq_length: int,
    micro_batch: int,
    accumulation: int = 1,
    checkpointing: str = "none",
    network: Network | None = None,
    efficiency: float = DEFAULT_EFFICIENCY,
) -> StepTime:
    """Seconds of one optimizer step of a layout.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        cluster (`Cluster`): Devices.
        parallelism (`Parallelism`): Degrees.
        seq_length (`int`): Tokens of a sequence.
        micro_batch (`int`): Sequences of a micro-batch on one data parallel rank.
        accumulation (`int`, *optional*, defaults to 1): Micro-batches of a step.
        checkpointing (`str`, *optional*, defaults to `"none"`): `"none"` or `"full"`.
        network (`Network`, *optional*): Wiring.
        efficiency (`float`, *optional*, defaults to 0.5): Of kernels that wait for nothing.

    Returns:
        [`StepTime`]
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    wiring, plan = network or Network(), parallelism
    tokens = micro_batch * seq_length  # of a micro-batch of one model copy
    ranks = plan.tp * plan.cp * plan.pp
    rate = cluster.device.peak_flops * efficiency
    work = hardware_flops_per_token(shape, seq_length, recompute=checkpointing) * tokens / ranks / rate
    compute = work * accumulation
    link = (wiring.link_gbs or cluster.device.link_gbs) * 1e9
    outside = wiring.network_gbs * 1e9

    def speed(span: int) -> float:
        """What one device sends over a group that reaches so far; ranks are laid TP, CP, data, PP from the inside."""
        return link if span <= wiring.devices_per_node else outside

    weights = count_parameters(shape).total / (plan.tp * plan.pp)
    inner = plan.tp * plan.cp
    sharding = replication = 0.0
    if plan.strategy == "zero3" and plan.shards > 1:
        one = 3 * gather_bytes(2 * weights, plan.shards) / speed(inner * plan.dp_shard)
        sharding = accumulation * max(0.0, one - _HIDDEN_BY_COMPUTE * work)
    copies = plan.dp_replicate if plan.strategy == "zero3" else plan.data_parallel * plan.cp
    if copies > 1:
        size = 4 * weights / (plan.shards if plan.strategy == "zero3" else 1)
        sent = all_reduce_bytes(size, copies) / speed(inner * plan.data_parallel)
        replication = max(0.0, sent - _HIDDEN_BY_COMPUTE * _BACKWARD_SHARE * work)
    layers = shape.num_layers / plan.pp
    tensor = (
        accumulation * layers * tensor_parallel_bytes(shape.hidden_size, tokens // plan.cp, plan.tp) / speed(plan.tp)
    )
    context = 0.0
    if plan.cp > 1:
        width = max(shape.num_kv_heads / plan.tp, 1) * shape.head_dim
        ring = micro_batch * layers * context_parallel_bytes(seq_length, width, plan.cp) / speed(inner)
        attention = attention_flops_per_token(shape, seq_length, causal=True) * tokens / ranks / rate
        context = accumulation * max(0.0, ring - attention)
    expert = 0.0
    if plan.ep > 1:
        sparse = len(shape.sparse_layers) / plan.pp
        one = expert_parallel_bytes(shape.hidden_size, shape.experts_per_token, plan.ep)
        expert = accumulation * sparse * one * tokens / (plan.cp * plan.tp) / speed(plan.ep * plan.tp)
    busy = compute + sharding + replication + tensor + context + expert
    bubble = busy * pipeline_bubble(plan.pp, accumulation)[0]
    return StepTime(compute, sharding, replication, tensor, context, expert, bubble)


def _timed(
    shape: ModelShape,
    cluster: Cluster,
    network: Network,
    plan: Parallelism,
    seq_length: int,
    micro_batch: int,
    accumulation: int,
    checkpointing: str,
    memory: MemoryEstimate,
    efficiency: float,
) -> Layout:
    time = estimate_step(
        shape, cluster, plan, seq_length, micro_batch, accumulation, checkpointing, network, efficiency
    )
    speed = micro_batch * accumulation * plan.data_parallel * seq_length / time.total
    mfu = speed * training_flops_per_token(shape, seq_length) / (cluster.num_devices * cluster.device.peak_flops)
    return Layout(plan, micro_batch, accumulation, checkpointing, memory, time, speed, mfu)


def _rank(layout: Layout) -> tuple[float, bool, int, float]:
    """Faster first; among equals what can be launched, fewer kinds of parallelism, then less memory."""
    plan = layout.parallelism
    kinds = sum(value > 1 for value in (plan.dp_replicate, plan.tp, plan.pp, plan.cp, plan.ep))
    return (
        round(math.log(layout.tokens_per_second) / _EQUAL),
        launch_problem(plan) is None,
        -kinds,
        -layout.memory.total,
    )


def _divisions(shape: ModelShape, world: int, per_node: int, seq_length: int) -> Iterator[Parallelism]:
    """Every division worth a look: tensor parallelism inside a node, pieces of long sequences only."""
    for tp in _divisors(world):
        if tp > min(per_node, shape.num_heads):
            continue
        for cp in _divisors(world // tp):
            if cp > 1 and (seq_length < _CONTEXT_FROM or seq_length // cp < 1024):
                continue
            for pp in _divisors(world // (tp * cp)):
                if pp > min(_LONGEST_PIPELINE, shape.num_layers):
                    continue
                data = world // (tp * cp * pp)
                for shard in sorted(
                    {1, data, *(size for size in (per_node // tp, per_node) if data % max(size, 1) == 0)}
                ):
                    if shard < 1:
                        continue
                    strategy = "zero3" if shard * cp > 1 else "ddp"
                    ranks = shard * cp
                    experts = shape.num_experts or 1
                    for ep in _divisors(math.gcd(ranks, experts)):
                        if ep in (1, math.gcd(ranks, experts)) or ep <= per_node:
                            yield Parallelism(data // shard, shard, tp, pp, cp, ep, strategy)


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def _kind(error: str) -> str:
    """The reason of a fault without its numbers."""
    degree = error.split(" =", 1)[0]
    what = error.split("divide ", 1)[1].split(" =", 1)[0] if "divide " in error else "the sequence"
    return f"{degree} does not divide {what}"
