"""Configuration of Strata, one model family that is dense or a mixture of experts.

Names follow Qwen3 / Qwen3-MoE / Mixtral wherever those have one, so that users, exporters and the libraries that read
a config (TRL, Liger, PEFT) feel at home. What Strata adds is about training: the balance terms, the loss-free bias,
the capacity, the noise of the router. None of it acts at inference.

Errors are raised in the user's words (field = value; what is allowed; what to do). The `@strict` decorator wraps them
in `huggingface_hub.errors.StrictDataclassError`.
"""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


# RoPE types whose frequencies depend on the length the model was first trained at.
_NEEDS_ORIGINAL_LENGTH = ("yarn", "llama3", "longrope")

# Sizes people ask for. Vocabulary and context are overridable; everything else is the shape.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 8192,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
    "tiny-moe": {
        "vocab_size": 8192,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
    },
    "dense-125m": {
        "vocab_size": 49152,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    "dense-1b": {
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    },
    "moe-350m-a100m": {
        "vocab_size": 49152,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 640,
        "first_dense_layers": 1,
    },
    "moe-1b-a300m": {
        "vocab_size": 49152,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "num_experts": 32,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 640,
        "first_dense_layers": 1,
    },
    "moe-7b-a1b": {
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "tie_word_embeddings": False,
    },
}


@strict
class StrataConfig(PreTrainedConfig):
    """Shape and training behaviour of a Strata model. Dense when `num_experts` is 0.

    Args:
        vocab_size (`int`, *optional*, defaults to 32768): Rows of the embedding matrix.
        hidden_size (`int`, *optional*, defaults to 768): Width of the residual stream.
        intermediate_size (`int`, *optional*, defaults to 2048): Inner width of a dense SwiGLU layer.
        num_hidden_layers (`int`, *optional*, defaults to 12): Number of decoder layers.
        num_attention_heads (`int`, *optional*, defaults to 12): Query heads.
        num_key_value_heads (`int`, *optional*, defaults to 4): Key and value heads; must divide the query heads.
        head_dim (`int`, *optional*): Width of a head; by default `hidden_size // num_attention_heads`. Even.
        hidden_act (`str`, *optional*, defaults to `"silu"`): Activation of the gate.
        max_position_embeddings (`int`, *optional*, defaults to 4096): Longest sequence, after any RoPE extension.
        initializer_range (`float`, *optional*, defaults to 0.02): Standard deviation of the initial weights.
        residual_init (`str`, *optional*, defaults to `"depth_scaled"`): `"depth_scaled"` divides the standard
            deviation of the matrices that write to the residual stream by `sqrt(2 * num_hidden_layers)` (Megatron);
            `"plain"` does not.
        rms_norm_eps (`float`, *optional*, defaults to 1e-6): Epsilon of every RMSNorm.
        use_cache (`bool`, *optional*, defaults to `True`): Return a key-value cache (never while training).
        tie_word_embeddings (`bool`, *optional*, defaults to `True`): Share the input embedding with the head.
        rope_parameters (`dict`, *optional*): RoPE as transformers 5 writes it (`rope_type`, `rope_theta`, ...).
            The types yarn, llama3 and longrope need `original_max_position_embeddings` in it.
        attention_bias (`bool`, *optional*, defaults to `False`): Biases in the attention projections.
        attention_dropout (`float`, *optional*, defaults to 0.0): Dropout on attention weights.
        use_qk_norm (`bool`, *optional*, defaults to `True`): RMSNorm over each head of queries and keys, before RoPE.
        sliding_window (`int`, *optional*): Window of the layers marked `"sliding_attention"` in `layer_types`.
        layer_types (`list[str]`, *optional*): `"full_attention"` or `"sliding_attention"` for each layer.
        final_logit_softcapping (`float`, *optional*): Logits become `cap * tanh(logits / cap)`.
        num_experts (`int`, *optional*, defaults to 0): Experts per sparse layer; 0 makes the model dense.
        num_experts_per_tok (`int`, *optional*, defaults to 2): Experts each token uses (k).
        moe_intermediate_size (`int`, *optional*): Inner width of one expert; by default
            `intermediate_size // num_experts_per_tok`, so that a token costs what the dense layer would.
        moe_layer_freq (`int`, *optional*, defaults to 1): Layer i is sparse when `(i + 1) % moe_layer_freq == 0`.
        first_dense_layers (`int`, *optional*, defaults to 0): That many first layers stay dense.
        shared_expert_intermediate_size (`int`, *optional*, defaults to 0): Inner width of an expert every token uses;
            0 for none.
        scoring_func (`str`, *optional*, defaults to `"softmax"`): `"softmax"` or `"sigmoid"` router scores.
        norm_topk_prob (`bool`, *optional*, defaults to `True`): Gates of a token sum to one.
        output_router_logits (`bool`, *optional*, defaults to `False`): Return the router logits. The balance terms do
            not need it: their coefficients alone switch them on.
        router_aux_loss_coef (`float`, *optional*, defaults to 0.01): Weight of the load-balance loss.
        router_z_loss_coef (`float`, *optional*, defaults to 0.001): Weight of the router z-loss (arXiv 2202.08906).
        balance_scope (`str`, *optional*, defaults to `"micro"`): Tokens over which the load is counted: `"sequence"`
            (each row), `"micro"` (the micro-batch of this process) or `"global"` (all processes and the accumulation
            window so far, arXiv 2501.11873).
        router_bias_update_rate (`float`, *optional*): Step of the loss-free balancing bias (arXiv 2408.15664). `None`
            for a model without the bias; 0 keeps the bias as it is.
        expert_capacity_factor (`float`, *optional*): In training an expert takes at most
            `ceil(factor * k * tokens / num_experts)` assignments. `True` is 1.25, `None` no limit. Never acts at
            inference.
        capacity_priority (`str`, *optional*, defaults to `"position"`): Who gets a place first: `"position"` (all
            first choices in batch order, then all second choices) or `"probability"` (highest gate first).
        capacity_overflow (`str`, *optional*, defaults to `"drop"`): An assignment without a place is dropped
            (`"drop"`), goes to the token's next best expert with room (`"reroute"`), or is kept and only counted
            (`"dropless"`).
        router_noise (`str`, *optional*, defaults to `"none"`): Exploration in training: `"none"`, `"gumbel"`,
            `"gaussian"` (learned scale, arXiv 1701.06538) or `"jitter"` (arXiv 2101.03961).
        router_noise_scale (`float`, *optional*): Temperature of gumbel and factor of gaussian noise (1.0 by default),
            half-width of jitter (0.01 by default).
        expert_dropout (`float`, *optional*, defaults to 0.0): Probability that an expert is closed for a whole
            training micro-batch; at least k stay open.
        pad_token_id (`int`, *optional*): Id of padding; its embedding gets no gradient, and a classifier looks for
            the last token before it.
        bos_token_id (`int`, *optional*): Id that starts a text.
        eos_token_id (`int` or `list[int]`, *optional*): Id or ids that end a text.

    Example:

    ```python
    >>> from hf_pretrain.models.strata.configuration_strata import StrataConfig

    >>> config = StrataConfig.preset("tiny-moe", vocab_size=4096)
    >>> config.num_experts, config.head_dim
    (8, 32)
    ```
    """

    model_type = "strata"
    keys_to_ignore_at_inference = ["cache", "past_key_values", "aux_loss", "router_logits", "router_indices"]
    attribute_map = {"num_local_experts": "num_experts", "decoder_sparse_step": "moe_layer_freq"}

    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.q_norm": "replicated_with_grad_sum",
        "layers.*.self_attn.k_norm": "replicated_with_grad_sum",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
        "layers.*.mlp.shared_expert.gate_proj": "colwise",
        "layers.*.mlp.shared_expert.up_proj": "colwise",
        "layers.*.mlp.shared_expert.down_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    base_model_ep_plan = {
        "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
        "layers.*.mlp.experts.down_proj": "grouped_gemm",
        "layers.*.mlp.experts": "ep_dispatch_experts",
    }
    base_model_pp_plan = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }
    base_model_fsdp_plan = {
        "embed_tokens": "free_full_weight",
        "layers.*": "free_full_weight",
        "norm": "keep_full_weight",
    }

    vocab_size: int = 32768
    hidden_size: int = 768
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02
    residual_init: Literal["depth_scaled", "plain"] = "depth_scaled"
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    tie_word_embeddings: bool = True
    rope_parameters: dict | None = None
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    use_qk_norm: bool = True
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    final_logit_softcapping: float | int | None = None

    num_experts: int = 0
    num_experts_per_tok: int = 2
    moe_intermediate_size: int | None = None
    moe_layer_freq: int = 1
    first_dense_layers: int = 0
    shared_expert_intermediate_size: int = 0
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = True
    output_router_logits: bool = False
    router_aux_loss_coef: float | int = 0.01
    router_z_loss_coef: float | int = 0.001
    balance_scope: Literal["sequence", "micro", "global"] = "micro"
    router_bias_update_rate: float | int | None = None
    expert_capacity_factor: float | int | bool | None = None
    capacity_priority: Literal["position", "probability"] = "position"
    capacity_overflow: Literal["drop", "reroute", "dropless"] = "drop"
    router_noise: Literal["none", "gumbel", "gaussian", "jitter"] = "none"
    router_noise_scale: float | int | None = None
    expert_dropout: float | int = 0.0

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.head_dim is None and self.num_attention_heads > 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.moe_intermediate_size is None and self.num_experts_per_tok > 0:
            self.moe_intermediate_size = max(1, self.intermediate_size // self.num_experts_per_tok)
        if isinstance(self.expert_capacity_factor, bool):
            self.expert_capacity_factor = 1.25 if self.expert_capacity_factor else None
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        # The base class fills a missing original length with the *extended* one, silently (wrong frequencies).
        # Looked up here because after the fill it can no longer be told apart.
        rope = kwargs.get("rope_scaling") or self.rope_parameters or {}
        self.rope_parameters = dict(rope)
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type in _NEEDS_ORIGINAL_LENGTH and not rope.get("original_max_position_embeddings"):
            raise ValueError(
                f"rope_parameters = {dict(rope)}; rope_type '{rope_type}' needs `original_max_position_embeddings`, "
                "the length the model was trained at before the extension; add it, or use `extend_context`."
            )
        super().__post_init__(**kwargs)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "StrataConfig":
        """Configuration of a named size.

        Args:
            name (`str`): One of `PRESETS` (for example `"tiny-moe"`, `"moe-1b-a300m"`).
            overrides (`Any`): Fields that differ from the preset.

        Returns:
            `StrataConfig`: The configuration.

        Raises:
            ValueError: If there is no such preset.
        """
        if name not in PRESETS:
            raise ValueError(f"preset = {name!r}; known presets: {', '.join(sorted(PRESETS))}; choose one of them.")
        return cls(**{**PRESETS[name], **overrides})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "StrataConfig":
        """Configuration from a dictionary; refuses that of another architecture.

        Args:
            config_dict (`dict`): Fields, as `to_dict` writes them.
            kwargs (`Any`): Fields that differ.

        Returns:
            `StrataConfig`: The configuration.

        Raises:
            ValueError: If the dictionary is of another model type. transformers would go on and leave what the other
                model lacks at random.
        """
        found = config_dict.get("model_type") or cls.model_type
        if found != cls.model_type:
            raise ValueError(
                f"model_type = {found!r}; this is no Strata checkpoint: load it with AutoModelForCausalLM, or take it "
                "in with `from_hf` of `import_strata` (llama, qwen3, mixtral and qwen3_moe)."
            )
        return super().from_dict(config_dict, **kwargs)

    def is_sparse_layer(self, layer_idx: int) -> bool:
        """Whether a layer holds experts.

        Args:
            layer_idx (`int`): Index of the layer, from 0.

        Returns:
            `bool`: True for a mixture-of-experts layer.
        """
        return (
            self.num_experts > 0
            and layer_idx >= self.first_dense_layers
            and (layer_idx + 1) % self.moe_layer_freq == 0
        )

    def check_capacity(self, tokens: int) -> None:
        """Refuse a capacity below one token: rounded up, it would be another factor than the one asked for.

        Args:
            tokens (`int`): Tokens of a micro-batch, padding included.

        Raises:
            ValueError: If an expert could not hold one token.
        """
        places = self.expert_capacity_factor * self.num_experts_per_tok * tokens / self.num_experts
        if places < 1:
            raise ValueError(
                f"expert_capacity_factor = {self.expert_capacity_factor}; {tokens} tokens leave each of "
                f"{self.num_experts} experts {places:.2g} places, less than one; use at least "
                f"{self.expert_capacity_factor / places:.3g}, or more tokens in a micro-batch."
            )

    def validate_shape(self):
        """Sizes are positive and fit each other."""
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
            "moe_layer_freq",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; at least 1 is needed.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads = {self.num_key_value_heads}; it must divide num_attention_heads = "
                f"{self.num_attention_heads}; every key head serves the same number of query heads."
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(
                f"head_dim = {self.head_dim}; RoPE turns pairs, so it must be even and at least 2; set head_dim, "
                f"or a hidden_size ({self.hidden_size}) that num_attention_heads ({self.num_attention_heads}) divides."
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act = {self.hidden_act!r}; known activations: {', '.join(sorted(ACT2FN))}.")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window = {self.sliding_window}; at least 1, or None for full attention.")
        if "sliding_attention" in self.layer_types and self.sliding_window is None:
            raise ValueError("layer_types has 'sliding_attention' but sliding_window = None; set sliding_window.")
        if not set(self.layer_types) <= {"full_attention", "sliding_attention"}:
            raise ValueError(f"layer_types = {self.layer_types}; allowed: 'full_attention', 'sliding_attention'.")
        if self.final_logit_softcapping is not None and self.final_logit_softcapping <= 0:
            raise ValueError(
                f"final_logit_softcapping = {self.final_logit_softcapping}; above 0, or None to leave logits alone."
            )
        for name in ("attention_dropout", "expert_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; a probability in [0, 1) is needed.")

    def validate_experts(self):
        """Expert counts, capacity and router options fit each other."""
        if self.num_experts < 0 or self.first_dense_layers < 0 or self.shared_expert_intermediate_size < 0:
            raise ValueError(
                f"num_experts = {self.num_experts}, first_dense_layers = {self.first_dense_layers}, "
                f"shared_expert_intermediate_size = {self.shared_expert_intermediate_size}; none may be negative."
            )
        for name in ("router_aux_loss_coef", "router_z_loss_coef", "router_bias_update_rate", "router_noise_scale"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} = {value}; a finite number of at least 0 is needed.")
        if self.num_experts == 0:
            return
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok = {self.num_experts_per_tok}; between 1 and num_experts = {self.num_experts}."
            )
        if self.moe_intermediate_size < 1:
            raise ValueError(f"moe_intermediate_size = {self.moe_intermediate_size}; at least 1 is needed.")
        if not any(self.is_sparse_layer(layer) for layer in range(self.num_hidden_layers)):
            raise ValueError(
                f"num_experts = {self.num_experts} but no layer is sparse: first_dense_layers = "
                f"{self.first_dense_layers}, moe_layer_freq = {self.moe_layer_freq}, num_hidden_layers = "
                f"{self.num_hidden_layers}; lower the first two, or set num_experts = 0."
            )
        asked = (self.capacity_priority, self.capacity_overflow)
        if self.expert_capacity_factor is None and asked != ("position", "drop"):
            raise ValueError(
                f"capacity_priority = {asked[0]!r}, capacity_overflow = {asked[1]!r} without expert_capacity_factor; "
                "nothing overflows without a limit; set the factor (True is 1.25), or leave both at their defaults."
            )
        if self.expert_capacity_factor is not None and not 0 < self.expert_capacity_factor < float("inf"):
            raise ValueError(
                f"expert_capacity_factor = {self.expert_capacity_factor}; above 0 (1.25 is usual), or None."
            )

    def validate_context_length(self):
        """The YaRN factor says the same as the two lengths."""
        rope = self.rope_parameters or {}
        rope_type = rope.get("rope_type", "default")
        if rope_type != "default" and rope_type not in ROPE_INIT_FUNCTIONS:
            known = ", ".join(["default", *sorted(ROPE_INIT_FUNCTIONS)])
            raise ValueError(f"rope_parameters['rope_type'] = {rope_type!r}; known types: {known}.")
        if not rope.get("rope_theta", 0) > 0:
            raise ValueError(f"rope_parameters['rope_theta'] = {rope.get('rope_theta')}; a number above 0 is needed.")
        if rope_type in ("yarn", "linear") and not (rope.get("factor") or 0) >= 1:
            raise ValueError(f"rope_parameters['factor'] = {rope.get('factor')}; at least 1 is needed.")
        original = rope.get("original_max_position_embeddings")
        if rope_type == "yarn" and abs(self.max_position_embeddings / original - rope["factor"]) > 1e-6:
            raise ValueError(
                f"rope_parameters['factor'] = {rope['factor']}; max_position_embeddings = "
                f"{self.max_position_embeddings} is {self.max_position_embeddings / original:g} times "
                f"original_max_position_embeddings = {original}; make them agree, or use `extend_context`."
            )


__all__ = ["PRESETS", "StrataConfig"]
