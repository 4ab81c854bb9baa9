"""Parameter counts from a configuration alone, dense and mixture of experts.

A layer with hidden size d, H query heads and KV key heads of width hd, feed-forward width f, E experts of which k run:

    attention   d H hd * 2 + d KV hd * 2        feed-forward  3 d f (SwiGLU)
    norms       2 d (+ QK-norm)                 experts       d E + E * 3 d f_expert, active d E + k * 3 d f_expert

plus the embedding `V d`, a head of the same size unless tied, and the last norm. The counts equal the checkpoints' on
the Hub for the models in the tests. Attention of another kind (MLA) is refused rather than guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


# What a family does that its configuration does not say: QK-norm per head or over the whole projection, biases.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "phi3": {},
    "granite": {"tied": False},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms": 4},
    "smollm3": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head"},
    "qwen3_moe": {"qk_norm": "head"},
    "mixtral": {"expert_width": "intermediate_size"},
    "olmo2": {"qk_norm": "full"},
    "olmo3": {"qk_norm": "full"},
    "olmoe": {"qk_norm": "full", "expert_width": "intermediate_size"},
    "strata": {"tied": True},
}


@dataclass(frozen=True)
class ModelShape:
    """What the counts need to know of a model.

    Args:
        vocab_size (`int`): Rows of the embedding.
        hidden_size (`int`): Width of the residual stream.
        num_layers (`int`): Decoder layers.
        num_heads (`int`): Query heads.
        num_kv_heads (`int`): Key and value heads.
        head_dim (`int`): Width of a head.
        intermediate_size (`int`): Inner width of a dense feed-forward layer.
        tied (`bool`): Whether head and embedding are one matrix.
        qk_norm (`str`, *optional*): `"head"` (one scale per head width), `"full"` (over the projection) or `None`.
        qkv_bias (`bool`): Biases in the query, key and value projections.
        o_bias (`bool`): Bias in the output projection.
        num_experts (`int`): Experts per sparse layer; 0 for a dense model.
        experts_per_token (`int`): Experts a token uses.
        expert_width (`int`): Inner width of an expert.
        shared_width (`int`): Inner width of the expert that every token uses; 0 for none.
        sparse_layers (`tuple[int, ...]`): Indices of the layers that hold experts.
        windows (`tuple[int | None, ...]`): Attention window of each layer; `None` for full attention.
        learned_router_noise (`bool`): Whether a second router matrix holds the scale of the noise (training only).
        norms_per_layer (`int`): RMSNorms of the model's width in a layer.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    tied: bool
    qk_norm: str | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0
    sparse_layers: tuple[int, ...] = ()
    windows: tuple[int | None, ...] = ()
    learned_router_noise: bool = False
    norms_per_layer: int = 2

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Reads the shape out of a configuration as `config.json` or `config.to_dict()` has it.

        Args:
            config (`Mapping[str, Any]`): With transformers' names; without `model_type` it is read as a Llama.

        Returns:
            `ModelShape`: The shape.

        Raises:
            UserError: If a size is missing, or the family is not known here.
        """
        family_name = config.get("model_type") or "llama"
        if family_name not in _FAMILIES:
            raise UserError(unknown_name_message("model_type", family_name, _FAMILIES))
        family = _FAMILIES[family_name]

        def size(*names: str) -> int:
            for name in names:
                value = config.get(name)
                if value is not None:
                    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                        raise UserError(f"{name} = {value!r}; a whole number is needed to count parameters.")
                    return value
            raise UserError(f"{names[0]} is missing in the configuration; it is needed to count parameters.")

        hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
        experts = config.get("num_experts") or config.get("num_local_experts") or 0
        qk_norm = family.get("qk_norm")
        if qk_norm is None and config.get("use_qk_norm"):
            qk_norm = "head"
        bias = bool(config.get("attention_bias"))
        return cls(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate_size=size("intermediate_size"),
            tied=bool(config.get("tie_word_embeddings", family.get("tied", False))),
            qk_norm=qk_norm,
            qkv_bias=bias or bool(family.get("qkv_bias")),
            o_bias=bias,
            num_experts=experts,
            experts_per_token=size("num_experts_per_tok") if experts else 0,
            expert_width=size(family.get("expert_width", "moe_intermediate_size")) if experts else 0,
            shared_width=config.get("shared_expert_intermediate_size") or 0 if experts else 0,
            sparse_layers=_sparse_layers(config, layers) if experts else (),
            windows=_windows(config, layers),
            learned_router_noise=config.get("router_noise") == "gaussian",
            norms_per_layer=family.get("norms", 2),
        )


def _sparse_layers(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Layers that hold experts, by the rule of the configuration's family."""
    kinds = config.get("mlp_layer_types")
    if kinds is not None:
        return tuple(index for index, kind in enumerate(kinds) if kind == "sparse")
    step = config.get("moe_layer_freq") or config.get("decoder_sparse_step") or 1
    dense = set(config.get("mlp_only_layers") or ()) | set(range(config.get("first_dense_layers") or 0))
    return tuple(index for index in range(layers) if index not in dense and (index + 1) % step == 0)


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Attention window of each layer."""
    window = config.get("sliding_window")
    if config.get("use_sliding_window") is False:
        window = None
    kinds = config.get("layer_types")
    if window is None or kinds is None:
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters of one model.

    Args:
        total (`int`): All of them, a tied head counted once.
        active (`int`): Those a token uses at inference: `total` without the experts it is not sent to.
        embedding (`int`): Input embedding.
        head (`int`): Output head of its own; 0 when tied.
        matmul (`int`): Active weights in matrix products: no norms and biases, no embedding lookup, but the head even
            when it is tied.
    """

    total: int
    active: int
    embedding: int
    head: int
    matmul: int

    @property
    def non_embedding(self) -> int:
        """`int`: `total` without embedding and head (the N of Kaplan et al.)."""
        return self.total - self.embedding - self.head

    @property
    def active_non_embedding(self) -> int:
        """`int`: `active` without embedding and head."""
        return self.active - self.embedding - self.head

    @property
    def embedding_share(self) -> float:
        """`float`: Share of embedding and head in `total`; above 0.1 a law's advice hangs on which N it means."""
        return (self.embedding + self.head) / self.total


def count_parameters(model: ModelShape | Mapping[str, Any]) -> ParameterCount:
    """Counts the parameters of a causal language model.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration that [`ModelShape`] can read.

    Returns:
        `ParameterCount`: The counts.

    Raises:
        UserError: If the configuration cannot be read.

    Example:

        >>> llama = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        ...          "intermediate_size": 11008, "tie_word_embeddings": False}
        >>> count_parameters(llama).total
        6738415616
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    hidden = shape.hidden_size
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 2 * hidden * query + 2 * hidden * key
    small = shape.norms_per_layer * hidden + {"head": 2 * shape.head_dim, "full": query + key, None: 0}[shape.qk_norm]
    small += (query + 2 * key) * shape.qkv_bias + hidden * shape.o_bias
    router = hidden * shape.num_experts
    expert = 3 * hidden * shape.expert_width
    always = router + 3 * hidden * shape.shared_width
    if shape.shared_width and not shape.num_experts:
        raise UserError("shared_expert_intermediate_size is set, but num_experts is 0; a dense model has no experts.")
    sparse = len(shape.sparse_layers)
    dense_ffn = (shape.num_layers - sparse) * 3 * hidden * shape.intermediate_size
    held = sparse * (always + shape.num_experts * expert + router * shape.learned_router_noise)
    used = sparse * (always + shape.experts_per_token * expert)
    common = shape.num_layers * (attention + small) + hidden + dense_ffn
    embedding = shape.vocab_size * hidden
    head = 0 if shape.tied else embedding
    return ParameterCount(
        total=common + held + embedding + head,
        active=common + used + embedding + head,
        embedding=embedding,
        head=head,
        matmul=shape.num_layers * attention + dense_ffn + used + embedding,
    )
