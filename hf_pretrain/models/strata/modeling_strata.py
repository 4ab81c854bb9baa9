"""The Strata models: RMSNorm pre-norm decoder, QK-norm, grouped-query attention, SwiGLU, RoPE; dense or with experts.

The layers follow Qwen3 / Qwen3-MoE (blocks in `layers_strata.py`). Two things are particular:

* A sparse layer hands its router statistics (a few sums over tokens, never the logits) up as a second output, so the
  balance terms and the counters are computed once, outside activation checkpointing, for any number of layers.
* `StrataForCausalLM` adds the balance terms to the loss in training only, weighted by this micro-batch's share of the
  optimizer step's targets, so they do not depend on micro-batch size, accumulation or world size.

Experts run by transformers' experts interface (`@use_experts_implementation` on `StrataExperts`; the library looks for
that text in this file), attention by its attention interface.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_masks_for_generate, packed_sequence_mask_function
from transformers.modeling_layers import GenericForSequenceClassification, GradientCheckpointingLayer
from transformers.modeling_outputs import MoeCausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_strata import StrataConfig
from .context_strata import extend_context
from .counting_strata import ParameterCounts, count_parameters
from .experts_strata import StrataExperts
from .layers_strata import StrataAttention, StrataMLP, StrataRMSNorm, StrataRotaryEmbedding
from .parallel_strata import check_head_rows, loss_at_head
from .routing_strata import StrataRouter, load_balance_loss, unpack_statistics, updated_router_bias


logger = logging.getLogger(__name__)


@dataclass
class StrataModelOutputWithPast(MoeModelOutputWithPast):
    """Output of `StrataModel`.

    Args:
        router_indices (`tuple[torch.Tensor]`, *optional*): Chosen experts `(T, k)` of every sparse layer, with
            `output_router_indices=True`.
        load_balance (`torch.Tensor`, *optional*): Load-balance loss, mean over sparse layers; 1 when balanced.
        router_z (`torch.Tensor`, *optional*): Router z-loss, mean over sparse layers.
    """

    router_indices: tuple[torch.Tensor] | None = None
    load_balance: torch.Tensor | None = None
    router_z: torch.Tensor | None = None


@dataclass
class StrataCausalLMOutputWithPast(MoeCausalLMOutputWithPast):
    """Output of `StrataForCausalLM`; `aux_loss` is the load-balance loss before its coefficient.

    Args:
        router_indices (`tuple[torch.Tensor]`, *optional*): Chosen experts `(T, k)` of every sparse layer, with
            `output_router_indices=True`.
    """

    router_indices: tuple[torch.Tensor] | None = None


class StrataSparseMoeBlock(nn.Module):
    """Router, fused experts and an optional shared expert.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        super().__init__()
        self.gate = StrataRouter(config)
        self.experts = StrataExperts(config)
        width = config.shared_expert_intermediate_size
        self.shared_expert = StrataMLP(config, width) if width > 0 else None
        self.by_row = config.balance_scope == "sequence"

    def forward(
        self,
        hidden_states: torch.Tensor,
        collect: bool = False,
        token_mask: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Send every token through its experts.

        Args:
            hidden_states (`torch.Tensor`): Shape `(B, T, H)`.
            collect (`bool`, *optional*, defaults to `False`): Also return router statistics.
            token_mask (`torch.Tensor`, *optional*): Shape `(B, T)`; False marks padding.
            target_mask (`torch.Tensor`, *optional*): Shape `(B, T)`; tokens that have a target.

        Returns:
            `tuple`: Output `(B, T, H)` and statistics `(G, 2E + 6)` or `None`.
        """
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        routing = self.gate(
            flat,
            collect,
            None if token_mask is None else token_mask.reshape(-1),
            None if target_mask is None else target_mask.reshape(-1),
            hidden_states.shape[0] if self.by_row else 1,
        )
        output = self.experts(flat, routing.indices, routing.weights)
        if self.shared_expert is not None:
            output = output + self.shared_expert(flat)
        return output.reshape(hidden_states.shape), routing.statistics


class StrataDecoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each behind a norm and around a residual.

    Args:
        config (`StrataConfig`): The model's configuration.
        layer_idx (`int`): Index of the layer.
    """

    def __init__(self, config: StrataConfig, layer_idx: int):
        super().__init__()
        self.self_attn = StrataAttention(config, layer_idx)
        self.is_sparse = config.is_sparse_layer(layer_idx)
        self.mlp = StrataSparseMoeBlock(config) if self.is_sparse else StrataMLP(config, config.intermediate_size)
        self.input_layernorm = StrataRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = StrataRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        collect: bool = False,
        token_mask: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Run the layer.

        Args:
            hidden_states (`torch.Tensor`): Shape `(B, T, H)`.
            attention_mask (`torch.Tensor`, *optional*): Prepared mask.
            position_ids (`torch.LongTensor`, *optional*): Shape `(B, T)`.
            cache (`Cache`, *optional*): Keys and values so far.
            use_cache (`bool`, *optional*, defaults to `False`): Read by activation checkpointing.
            position_embeddings (`tuple[torch.Tensor, torch.Tensor]`, *optional*): Cosines and sines.
            collect (`bool`, *optional*, defaults to `False`): A sparse layer also returns its router statistics.
            token_mask (`torch.Tensor`, *optional*): Shape `(B, T)`; False marks padding.
            target_mask (`torch.Tensor`, *optional*): Shape `(B, T)`; tokens that have a target.
            kwargs (`TransformersKwargs`): Passed to attention.

        Returns:
            `torch.Tensor` or `tuple`: Hidden states `(B, T, H)`, with statistics when asked for.
        """
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )
        hidden_states = hidden_states + attended
        normed = self.post_attention_layernorm(hidden_states)
        if not self.is_sparse:
            return hidden_states + self.mlp(normed)
        output, statistics = self.mlp(normed, collect, token_mask, target_mask)
        return (hidden_states + output, statistics) if collect else hidden_states + output


class StrataPreTrainedModel(PreTrainedModel):
    """What all Strata models share: flags, recorders, initial weights."""

    config: StrataConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["StrataDecoderLayer"]
    _skip_keys_device_placement = ["cache"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True  # with grouped_mm; the eager experts loop breaks the graph
    _can_record_outputs = {
        "router_logits": OutputRecorder(StrataRouter, index=0),
        "router_indices": OutputRecorder(StrataRouter, index=2),
        "hidden_states": StrataDecoderLayer,
        "attentions": StrataAttention,
    }

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """Choose how experts run: our sorted loop on machines without an accelerator, else transformers' choice.

        Args:
            requested_experts (`str`, *optional*): What the user asked for; it wins.

        Returns:
            `str`: Name of the experts implementation.
        """
        if requested_experts is None and torch.accelerator.current_accelerator(check_available=True) is None:
            return "eager"  # on a CPU it keeps the least memory: tests/benchmarks/models.py
        return super().get_correct_experts_implementation(requested_experts)

    def _init_weights(self, module: nn.Module) -> None:
        """Normal weights; those that write to the residual stream are scaled by depth where the config says so."""
        super()._init_weights(module)
        std = self.config.initializer_range
        depth_scaled = self.config.residual_init == "depth_scaled"
        residual_std = std / (2 * self.config.num_hidden_layers) ** 0.5 if depth_scaled else std
        if isinstance(module, nn.Linear) and getattr(module, "_writes_residual", False):
            init.normal_(module.weight, mean=0.0, std=residual_std)
        elif isinstance(module, StrataExperts):
            init.normal_(module.gate_up_proj, mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=residual_std)
        elif isinstance(module, StrataRouter):
            init.normal_(module.weight, mean=0.0, std=std)
            if hasattr(module, "noise_weight"):
                init.zeros_(module.noise_weight)
            if module.e_score_correction_bias is not None:
                init.zeros_(module.e_score_correction_bias)

    def extend_context(self, factor: float | None = None, rope_type: str = "yarn", **options: Any) -> None:
        """Make the context longer, in place: lengths, RoPE and its buffers; `save_pretrained` keeps it.

        Args:
            factor (`float`, *optional*): New length over the current one; or give `max_position_embeddings`.
            rope_type (`str`, *optional*, defaults to `"yarn"`): See `context_strata.extend_context`.
            options (`Any`): `max_position_embeddings` and entries of `rope_parameters`.
        """
        extend_context(self, factor, rope_type, **options)


class StrataModel(StrataPreTrainedModel):
    """Embedding, decoder layers, final norm.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        super().__init__(config)
        if config.num_experts > 0:  # of the model, not the class: names that nothing has would hide a misspelling
            fp32 = {"mlp.gate.weight": True, "noise_weight": config.router_noise == "gaussian"}
            fp32["e_score_correction_bias"] = config.router_bias_update_rate is not None
            self._keep_in_fp32_modules_strict = {name for name, exists in fp32.items() if exists}
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList([StrataDecoderLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = StrataRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = StrataRotaryEmbedding(config)
        self.gradient_checkpointing = False
        # Plain attributes: a registered buffer would be overwritten by rank 0's at every DDP forward.
        self._router_totals: torch.Tensor | None = None  # since the last reset, for reports
        self._window_totals: torch.Tensor | None = None  # since the last optimizer step, for bias and global balance
        self._steps_without_update = 0
        self._step_was_told: bool | None = None  # None: nobody calls `start_optimizer_step`
        self._gate_version = -1
        self.router_losses: dict[str, torch.Tensor] = {}
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        target_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> StrataModelOutputWithPast:
        """Compute hidden states.

        Args:
            input_ids (`torch.LongTensor`, *optional*): Shape `(B, T)`.
            attention_mask (`torch.Tensor`, *optional*): Shape `(B, T)`, 0 marks padding. Leave it out for packed rows.
            position_ids (`torch.LongTensor`, *optional*): Shape `(B, T)`. Where they restart, a new document starts
                and does not see the ones before it.
            cache (`Cache`, *optional*): Keys and values so far.
            inputs_embeds (`torch.Tensor`, *optional*): Shape `(B, T, H)`, instead of `input_ids`.
            use_cache (`bool`, *optional*): Make a cache; never while training or for packed rows.
            target_mask (`torch.Tensor`, *optional*): Shape `(B, T)`; tokens whose router z-loss counts (default: all).
            kwargs (`TransformersKwargs`): Recording flags, and what attention takes.

        Returns:
            `StrataModelOutputWithPast`: Last hidden states and what was asked for.

        Raises:
            ValueError: If not exactly one of the two inputs is given, or packed rows meet a cache.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        use_cache = bool(use_cache) and not self.training
        attention_mask, use_cache, documents = self._separate_documents(
            inputs_embeds, attention_mask, position_ids, cache, use_cache
        )
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + seen).unsqueeze(0)

        masks = self._attention_masks(inputs_embeds, attention_mask, position_ids, cache, documents)
        hidden_states = inputs_embeds
        self.rotary_emb.warn_if_stale(self.config)
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        if self.training and self.config.expert_capacity_factor is not None and self.config.num_experts > 0:
            self.config.check_capacity(inputs_embeds.shape[0] * inputs_embeds.shape[1])
        collect = self.config.num_experts > 0 and (self.training or bool(kwargs.get("output_router_logits")))
        token_mask = None
        if isinstance(attention_mask, torch.Tensor) and attention_mask.shape == inputs_embeds.shape[:2]:
            token_mask = attention_mask.bool()
        statistics = []
        for layer, layer_type in zip(self.layers, self.config.layer_types, strict=True):
            output = layer(
                hidden_states,
                attention_mask=masks[layer_type],
                position_ids=position_ids,
                cache=cache,
                use_cache=use_cache,
                position_embeddings=position_embeddings,
                collect=collect,
                token_mask=token_mask,
                target_mask=target_mask,
                **kwargs,
            )
            if isinstance(output, tuple):
                hidden_states, layer_statistics = output
                statistics.append(layer_statistics)
            else:
                hidden_states = output
        hidden_states = self.norm(hidden_states)
        load_balance, router_z = self._balance_terms(torch.stack(statistics)) if statistics else (None, None)
        return StrataModelOutputWithPast(
            last_hidden_state=hidden_states, cache=cache, load_balance=load_balance, router_z=router_z
        )

    def _separate_documents(self, inputs_embeds, attention_mask, position_ids, cache, use_cache):
        """Keep packed documents apart in the cases the mask functions do not look at: a 2-D mask, or a cache.

        Without mask and cache transformers finds the documents itself, so nothing is done (and nothing synchronised).
        """
        packable = position_ids is not None and inputs_embeds.shape[1] > 1 and not isinstance(attention_mask, dict)
        if not packable or (attention_mask is None and cache is None and not use_cache):
            return attention_mask, use_cache, None
        if attention_mask is not None and attention_mask.shape != inputs_embeds.shape[:2]:
            return attention_mask, use_cache, None  # prepared by the caller, or longer than the rows (a filled cache)
        restart = position_ids[:, 1:] != position_ids[:, :-1] + 1
        if attention_mask is not None:
            restart = restart & attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()  # padding is no document
        compiling = torch.compiler.is_compiling()  # a graph cannot look at values: without a cache, assume documents
        if (compiling and cache is not None) or (not compiling and not restart.any()):
            return attention_mask, use_cache, None
        if cache is not None:
            raise ValueError(
                "position_ids restart inside a row (packed documents) and a cache is given; later tokens would attend "
                "to every document in it; pass the documents one per row, or use_cache=False."
            )
        if attention_mask is None or (not compiling and attention_mask.bool().all()):
            return None, False, None
        if self.config._attn_implementation not in ("eager", "sdpa", "flex_attention"):
            raise ValueError(
                f"attn_implementation = {self.config._attn_implementation}; packed rows with padding need 'sdpa', "
                "'eager' or 'flex_attention'; or leave out attention_mask."
            )
        restart = restart.expand(inputs_embeds.shape[0], -1)
        return attention_mask, False, F.pad(restart.long().cumsum(-1), (1, 0))

    def _attention_masks(self, inputs_embeds, attention_mask, position_ids, cache, documents) -> dict:
        """One mask per kind of attention in use."""
        if isinstance(attention_mask, dict):  # `generate` made them, for a compiled forward with a static cache
            return attention_mask
        return create_masks_for_generate(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
            and_mask_function=None if documents is None else packed_sequence_mask_function(documents),
        )

    def _balance_terms(self, statistics: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Load balance and router z from the layers' statistics `(L, G, 2E + 6)`; adds to the counters in training."""
        named = unpack_statistics(statistics, self.config.num_experts)
        tokens, counts, count_tokens = named["tokens"], named["load"], None
        if self.training:
            window = self._accumulate(statistics.detach().sum(1))
            if self.config.balance_scope == "global":
                wide = unpack_statistics(_sum_over_ranks(window), self.config.num_experts)
                counts, count_tokens = wide["load"].unsqueeze(1), wide["tokens"].unsqueeze(1)
        per_group = load_balance_loss(
            counts, named["probability_sum"], tokens, self.config.num_experts_per_tok, count_tokens
        )
        # A row weighs by its targets, as the micro-batch will by all of them: the mean over the step is the same for
        # any split. Without a target a row weighs nothing; a micro-batch of padding alone gives 0, not NaN.
        targets = named["lse_tokens"]
        load_balance = ((per_group * targets).sum(-1) / targets.sum(-1).clamp(min=1.0)).mean()
        router_z = (named["lse_sq_sum"].sum(-1) / targets.sum(-1).clamp(min=1.0)).mean()
        self.router_losses = {"load_balance": load_balance.detach(), "router_z": router_z.detach()}
        return load_balance, router_z

    def _accumulate(self, totals: torch.Tensor) -> torch.Tensor:
        """Add one micro-batch to the counters; returns those of the current optimizer step."""
        first = self._is_first_of_step()
        pending = bool(self.config.router_bias_update_rate)  # the bias update ends the window, not the next backward
        self._steps_without_update += int(first and pending)
        if self._steps_without_update == 100:
            logger.warning(
                "router_bias_update_rate = %s, but update_router_bias() was not called in 100 optimizer steps; the "
                "bias does not move; call it after every optimizer step.",
                self.config.router_bias_update_rate,
            )
        if self._window_totals is None or (first and not pending):
            self._window_totals = totals
        else:
            self._window_totals = self._window_totals + totals
        self._router_totals = totals if self._router_totals is None else self._router_totals + totals
        return self._window_totals

    def _is_first_of_step(self) -> bool:
        if self._step_was_told is not None:
            first, self._step_was_told = self._step_was_told, False
            return first
        # Left alone: a router's gradient is None until the first backward of a step, if `zero_grad` does that; if it
        # fills in zeros, the update that came before has written to the weight, which its version tells.
        weight = self.layers[self.sparse_layers[0]].mlp.gate.weight
        version, self._gate_version = self._gate_version, weight._version
        return weight.grad is None or weight._version != version

    def start_optimizer_step(self) -> None:
        """Say that an optimizer step begins: `balance_scope="global"` counts its micro-batches from here.

        A training loop that calls this before the first micro-batch of every step makes the model independent of how
        gradients are cleared or sharded; without it the model tells steps apart by its router's weight and gradient.
        """
        self._step_was_told = True

    @property
    def sparse_layers(self) -> list[int]:
        """Indices of the layers that hold experts."""
        return [index for index in range(self.config.num_hidden_layers) if self.config.is_sparse_layer(index)]

    def router_statistics(self) -> dict[str, torch.Tensor]:
        """Counters of the training forwards since the last reset, of this process, on the device, without a sync.

        Returns:
            `dict[str, torch.Tensor]`: `load` and `probability_sum` of shape `(layers, E)`; `tokens`, `entropy_sum`,
            `lse_sq_sum`, `lse_tokens`, `dropped`, `overflow` of shape `(layers,)`. Rows are the sparse layers in
            order. Empty when there is nothing.
        """
        if self._router_totals is None:
            return {}
        return unpack_statistics(self._router_totals, self.config.num_experts)

    def reset_router_statistics(self) -> None:
        """Start the counters of `router_statistics` anew."""
        self._router_totals = None

    @torch.no_grad()
    def update_router_bias(self, counts: torch.Tensor | None = None) -> None:
        """Move the loss-free balancing bias of every sparse layer; to be called once after every optimizer step.

        Args:
            counts (`torch.Tensor`, *optional*): Assignments over the global batch, shape `(layers, E)`. By default
                what the model counted since the last call, summed over processes (one collective).
        """
        rate = self.config.router_bias_update_rate
        if counts is None and self._window_totals is not None:
            counts = unpack_statistics(_sum_over_ranks(self._window_totals), self.config.num_experts)["load"]
        self._window_totals, self._steps_without_update = None, 0
        if rate is None or counts is None:
            return
        for row, index in enumerate(self.sparse_layers):
            bias = self.layers[index].mlp.gate.e_score_correction_bias
            bias.copy_(updated_router_bias(bias, counts[row].to(bias.device), rate))


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum over all processes, or the values themselves when there is one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    values = values.clone()
    torch.distributed.all_reduce(values)
    return values


class StrataForCausalLM(StrataPreTrainedModel, GenerationMixin):
    """Strata with a language-model head.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: StrataConfig):
        super().__init__(config)
        self.model = StrataModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_router_logits: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> StrataCausalLMOutputWithPast:
        """Compute logits and, with labels, the loss.

        In evaluation the loss is the cross-entropy alone. In training the load-balance and router z terms are added,
        weighted by this micro-batch's share of the step's targets. A loss function with `takes_hidden_states = True`
        gets the hidden states and the weight of the head; then `logits` is `None`.

        Args:
            input_ids (`torch.LongTensor`, *optional*): Shape `(B, T)`.
            attention_mask (`torch.Tensor`, *optional*): Shape `(B, T)`, 0 marks padding.
            position_ids (`torch.LongTensor`, *optional*): Shape `(B, T)`; restart at every packed document.
            cache (`Cache`, *optional*): Keys and values so far.
            inputs_embeds (`torch.Tensor`, *optional*): Shape `(B, T, H)`, instead of `input_ids`.
            labels (`torch.LongTensor`, *optional*): Shape `(B, T)`, not shifted; -100 is ignored.
            use_cache (`bool`, *optional*): Make a cache.
            output_router_logits (`bool`, *optional*): Return router logits (default: the config's).
            logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0): Last positions to compute; 0 for all.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): Targets in the whole optimizer step.
            skip_logits (`bool`, *optional*): Return no logits, or do; default: as the loss function wishes.
            kwargs (`TransformersKwargs`): Recording flags, what attention takes, what the loss function takes.

        Returns:
            `StrataCausalLMOutputWithPast`: Loss, logits and what was asked for.
        """
        if output_router_logits is None:
            output_router_logits = self.config.output_router_logits
        targets = kwargs.get("shift_labels")
        if targets is None and labels is not None:
            targets = F.pad(labels[:, 1:], (0, 1), value=-100)
        target_mask = None if targets is None else targets != -100
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_router_logits=output_router_logits,
            target_mask=target_mask,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        loss_function = self.loss_function
        if skip_logits and labels is None:
            raise ValueError(
                "skip_logits = True; without labels logits are all there is; pass labels or leave it out."
            )
        fused = getattr(loss_function, "takes_hidden_states", None)  # None: it cannot
        fused = labels is not None and fused is not None and (fused if skip_logits is None else skip_logits)
        softcap = self.config.final_logit_softcapping
        logits = loss = None
        if fused:
            loss = loss_at_head(
                self.lm_head,
                hidden_states,
                lambda hidden_states, weight: loss_function(
                    hidden_states=hidden_states,
                    lm_head_weight=weight,
                    labels=labels,
                    vocab_size=self.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                    logit_softcap=softcap,
                    **kwargs,
                ),
            )
        else:
            logits = self.lm_head(slice_logits_to_keep(hidden_states, logits_to_keep))
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            if labels is not None:
                check_head_rows(logits.shape[-1], self.vocab_size)
                loss = loss_function(
                    logits=logits,
                    labels=labels,
                    vocab_size=self.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                    **kwargs,
                )
        if loss is not None and self.training and outputs.load_balance is not None:
            loss = loss + self._router_terms(outputs, target_mask, num_items_in_batch).to(loss.device)
        return StrataCausalLMOutputWithPast(
            loss=loss,
            aux_loss=outputs.load_balance if output_router_logits else None,
            logits=None if skip_logits else logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            router_logits=outputs.router_logits,
            router_indices=outputs.router_indices,
        )

    def _router_terms(self, outputs, target_mask: torch.Tensor, num_items_in_batch) -> torch.Tensor:
        """Balance terms, weighted so that their sum over micro-batches and processes is a mean over the step."""
        terms = self.config.router_aux_loss_coef * outputs.load_balance
        terms = terms + self.config.router_z_loss_coef * outputs.router_z
        if num_items_in_batch is None:
            return terms
        return terms * (target_mask.sum() / num_items_in_batch)

    @property
    def router_losses(self) -> dict[str, torch.Tensor]:
        """Detached `load_balance` and `router_z` of the last forward that computed them."""
        return self.model.router_losses

    def router_statistics(self) -> dict[str, torch.Tensor]:
        """Router counters since the last reset; see `StrataModel.router_statistics`.

        Returns:
            `dict[str, torch.Tensor]`: Counters per sparse layer.
        """
        return self.model.router_statistics()

    def reset_router_statistics(self) -> None:
        """Start the router counters anew."""
        self.model.reset_router_statistics()

    def start_optimizer_step(self) -> None:
        """Say that an optimizer step begins; see `StrataModel.start_optimizer_step`."""
        self.model.start_optimizer_step()

    def update_router_bias(self, counts: torch.Tensor | None = None) -> None:
        """Move the loss-free balancing bias; see `StrataModel.update_router_bias`.

        Args:
            counts (`torch.Tensor`, *optional*): Assignments over the global batch, shape `(layers, E)`.
        """
        self.model.update_router_bias(counts)

    def parameter_counts(self) -> ParameterCounts:
        """Total, active, embedding and matrix-product parameters, from the shape.

        Returns:
            `ParameterCounts`: The counts.
        """
        return count_parameters(self.config)


class StrataForSequenceClassification(GenericForSequenceClassification, StrataPreTrainedModel):
    """Strata with a classification head on the last token that is not padding; no balance terms in its loss.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        StrataPreTrainedModel.__init__(self, config)  # the generic one needs the Auto registration
        self.num_labels = config.num_labels
        self.model = StrataModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()


__all__ = [
    "StrataForCausalLM",
    "StrataForSequenceClassification",
    "StrataModel",
    "StrataPreTrainedModel",
]
