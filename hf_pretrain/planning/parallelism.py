"""How a job is divided over devices, what divides what, and what has to be sent.

World = dp_replicate * dp_shard * tp * pp * cp, as accelerate and torchtitan have it. Experts are spread inside the
data parallel ranks: ep divides dp_shard * cp. Weights, gradients and optimizer are sharded over dp_shard * cp by the
strategy: `ddp` not at all, `zero1` the optimizer, `zero2` gradients too, `zero3` (FSDP2) weights too; with
dp_replicate > 1 the last is HSDP.

The bytes of a collective are those one device sends around a ring of n: all-reduce 2 (n - 1) / n B, all-gather and
reduce-scatter (n - 1) / n B.
"""

from dataclasses import asdict, dataclass

from hf_pretrain.planning.counting import ModelShape
from hf_pretrain.planning.quantities import positive
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
_ALIASES = {"fsdp": "zero3", "fsdp2": "zero3", "hsdp": "zero3", "zero0": "ddp"}


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism.

    Args:
        dp_replicate (`int`, *optional*, defaults to 1): Copies of the sharded model.
        dp_shard (`int`, *optional*, defaults to 1): Data parallel ranks over which a copy is sharded.
        tp (`int`, *optional*, defaults to 1): Tensor parallel ranks, with sequence parallelism in the norms.
        pp (`int`, *optional*, defaults to 1): Pipeline stages.
        cp (`int`, *optional*, defaults to 1): Context parallel ranks: parts of a sequence.
        ep (`int`, *optional*, defaults to 1): Expert parallel ranks, inside `dp_shard * cp`.
        strategy (`str`, *optional*, defaults to `"zero3"`): One of `STRATEGIES`, or `"fsdp2"`, `"hsdp"`.

    Raises:
        UserError: If a degree is no positive whole number, the strategy is unknown, or `ep` does not divide.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    strategy: str = "zero3"

    def __post_init__(self) -> None:
        for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} = {value!r}; a whole number of at least 1 is needed.")
        strategy = _ALIASES.get(self.strategy, self.strategy)
        if strategy not in STRATEGIES:
            raise UserError(unknown_name_message("strategy", self.strategy, [*STRATEGIES, *_ALIASES]))
        object.__setattr__(self, "strategy", strategy)
        if (self.dp_shard * self.cp) % self.ep:
            raise UserError(
                f"ep = {self.ep}; it must divide dp_shard * cp = {self.dp_shard * self.cp}, which hold the experts."
            )

    @property
    def world(self) -> int:
        """`int`: Devices."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp * self.cp

    @property
    def data_parallel(self) -> int:
        """`int`: Ranks that read different samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> int:
        """`int`: Ranks over which the strategy shards."""
        return self.dp_shard * self.cp

    def describe(self) -> str:
        """The degrees above 1, for people.

        Returns:
            `str`: For example `"dp_shard 64, tp 8 (zero3)"`.
        """
        degrees = [f"{name} {value}" for name, value in asdict(self).items() if name != "strategy" and value > 1]
        return f"{', '.join(degrees) or 'one device'} ({self.strategy})"


def division_errors(shape: ModelShape, plan: Parallelism, seq_length: int | None = None) -> list[str]:
    """What the degrees do not divide.

    Args:
        shape (`ModelShape`): The model.
        plan (`Parallelism`): The degrees.
        seq_length (`int`, *optional*): Tokens of a sequence, for context parallelism.

    Returns:
        `list[str]`: One sentence a fault; empty where all divides.
    """
    errors = []

    def need(divides: bool, text: str) -> None:
        if not divides:
            errors.append(text)

    heads, kv = shape.num_heads, shape.num_kv_heads
    need(heads % plan.tp == 0, f"tp = {plan.tp}; it must divide num_attention_heads = {heads}.")
    need(
        kv % plan.tp == 0 or plan.tp % kv == 0,
        f"tp = {plan.tp}; it must divide num_key_value_heads = {kv}, or be a multiple of it (copied heads).",
    )
    need(shape.vocab_size % plan.tp == 0, f"tp = {plan.tp}; it must divide vocab_size = {shape.vocab_size}: pad it.")
    if len(shape.sparse_layers) < shape.num_layers:
        width = shape.intermediate_size
        need(width % plan.tp == 0, f"tp = {plan.tp}; it must divide intermediate_size = {width}.")
    need(
        shape.num_layers % plan.pp == 0,
        f"pp = {plan.pp}; it must divide num_hidden_layers = {shape.num_layers} into equal stages.",
    )
    if plan.ep > 1:
        need(shape.num_experts > 0, f"ep = {plan.ep}; the model has no experts.")
        if shape.num_experts:
            need(
                shape.num_experts % plan.ep == 0, f"ep = {plan.ep}; it must divide num_experts = {shape.num_experts}."
            )
    if shape.num_experts and plan.tp > 1:
        width = shape.expert_width
        need(width % plan.tp == 0, f"tp = {plan.tp}; it must divide moe_intermediate_size = {width}.")
    if seq_length is not None and plan.cp > 1:
        # Each rank takes two chunks, one early and one late, so that the causal mask costs all the same.
        need(seq_length % (2 * plan.cp) == 0, f"cp = {plan.cp}; seq_length = {seq_length} must be a multiple of 2 cp.")
    return errors


def check_division(shape: ModelShape, plan: Parallelism, seq_length: int | None = None) -> None:
    """Refuses degrees that do not divide the model.

    Args:
        shape (`ModelShape`): The model.
        plan (`Parallelism`): The degrees.
        seq_length (`int`, *optional*): Tokens of a sequence.

    Raises:
        UserError: With the first fault.
    """
    errors = division_errors(shape, plan, seq_length)
    if errors:
        raise UserError(errors[0])


def pipeline_bubble(stages: int, micro_batches: int, interleaved: int = 1) -> tuple[float, float]:
    """Idle time of 1F1B and GPipe schedules.

    Args:
        stages (`int`): p.
        micro_batches (`int`): m of a step and pipeline.
        interleaved (`int`, *optional*, defaults to 1): Chunks of layers a device holds, v; m must divide by p then.

    Returns:
        `tuple[float, float]`: Idle over useful time, (p - 1) / (v m), and over all time, (p - 1) / (v m + p - 1).

    Raises:
        UserError: If a number is below 1, or interleaving does not divide.
    """
    for name, value in (("stages", stages), ("micro_batches", micro_batches), ("interleaved", interleaved)):
        positive(name, value)
    if interleaved > 1 and micro_batches % stages:
        raise UserError(
            f"micro_batches = {micro_batches}; with interleaving it must be a multiple of {stages} stages."
        )
    useful = interleaved * micro_batches
    return (stages - 1) / useful, (stages - 1) / (useful + stages - 1)


def all_reduce_bytes(size: float, ranks: int) -> float:
    """Bytes one device sends in a ring all-reduce.

    Args:
        size (`float`): Bytes of the tensor.
        ranks (`int`): n.

    Returns:
        `float`: 2 (n - 1) / n of them.
    """
    return 2 * (ranks - 1) / ranks * size


def gather_bytes(size: float, ranks: int) -> float:
    """Bytes one device sends in a ring all-gather or reduce-scatter.

    Args:
        size (`float`): Bytes of the whole tensor.
        ranks (`int`): n.

    Returns:
        `float`: (n - 1) / n of them.
    """
    return (ranks - 1) / ranks * size


def tensor_parallel_bytes(hidden_size: int, tokens: int, ranks: int, itemsize: int = 2) -> float:
    """Bytes one device sends for one layer, forward and backward: four all-reduces of the hidden states.

    Args:
        hidden_size (`int`): h.
        tokens (`int`): Of a micro-batch.
        ranks (`int`): tp.
        itemsize (`int`, *optional*, defaults to 2): Bytes of an element.

    Returns:
        `float`: The same with sequence parallelism (gather and scatter instead of each all-reduce).
    """
    return 4 * all_reduce_bytes(itemsize * tokens * hidden_size, ranks)


def expert_parallel_bytes(hidden_size: int, experts_per_token: int, ranks: int, itemsize: int = 2) -> float:
    """Bytes a token and sparse layer cost in all-to-alls: dispatch and combine, forward and backward.

    Args:
        hidden_size (`int`): h.
        experts_per_token (`int`): k.
        ranks (`int`): ep.
        itemsize (`int`, *optional*, defaults to 2): Bytes of an element.

    Returns:
        `float`: 4 k h itemsize (ep - 1) / ep.
    """
    return 4 * experts_per_token * hidden_size * itemsize * (ranks - 1) / ranks


def context_parallel_bytes(seq_length: int, kv_width: int, ranks: int, itemsize: int = 2) -> float:
    """Bytes one device sends for a layer and sequence in ring attention: keys and values, forward and twice back.

    Args:
        seq_length (`int`): Tokens of the sequence.
        kv_width (`int`): KV heads times head width.
        ranks (`int`): cp.
        itemsize (`int`, *optional*, defaults to 2): Bytes of an element.

    Returns:
        `float`: 3 (cp - 1) hops of 2 itemsize (s / cp) kv_width.
    """
    return 3 * (ranks - 1) * 2 * itemsize * (seq_length / ranks) * kv_width


def overlap_tokens(peak_flops: float, mfu: float, link_bytes_per_second: float) -> float:
    """Tokens a device must train on in a step so that FSDP's traffic hides behind its work.

    Three collectives of 2 bytes a weight against 6 FLOPs a weight and token: the weights cancel.

    Args:
        peak_flops (`float`): Of a device, FLOP/s.
        mfu (`float`): Share of it in use.
        link_bytes_per_second (`float`): What one device sends.

    Returns:
        `float`: peak * mfu / bandwidth.
    """
    return positive("peak_flops", peak_flops) * positive("mfu", mfu) / positive("bandwidth", link_bytes_per_second)
