"""Sparse upcycling (arXiv 2212.05055): a mixture of experts made of a dense Strata, at first with the same output.

Every expert is a copy of the dense feed-forward layer `f` and the gates of a token sum to one, so the first output is
`sum_i g_i f(x) = f(x)`. With granularity G each copy is cut into G slices along its inner width, whose outputs sum to
`f`; the slices of a copy share their router row (virtual groups, arXiv 2410.07524), so they are chosen together, each
with gate `g_i / G`, and the factor G goes into the output matrices.
"""

import copy
from typing import Any

import torch

from .configuration_strata import StrataConfig
from .export_strata import assemble
from .modeling_strata import StrataForCausalLM


# Fields about experts that do not touch the first output.
_OPTIONS = (
    "balance_scope",
    "capacity_overflow",
    "capacity_priority",
    "expert_capacity_factor",
    "expert_dropout",
    "first_dense_layers",
    "moe_layer_freq",
    "router_aux_loss_coef",
    "router_bias_update_rate",
    "router_noise",
    "router_noise_scale",
    "router_z_loss_coef",
)


def upcycle(
    dense: StrataForCausalLM,
    num_experts: int,
    num_experts_per_tok: int,
    granularity: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> StrataForCausalLM:
    """Make a mixture of experts of a dense model; without noise its first output is the dense model's.

    Args:
        dense (`StrataForCausalLM`): The trained dense model; left as it is.
        num_experts (`int`): Experts per sparse layer; a multiple of `granularity`.
        num_experts_per_tok (`int`): Experts each token uses; a multiple of `granularity`.
        granularity (`int`, *optional*, defaults to 1): Slices each copy is cut into; divides `intermediate_size`. An
            expert is `intermediate_size // granularity` wide.
        noise (`float`, *optional*, defaults to 0.0): Gaussian noise on every expert's matrices, as a share of the
            matrix's standard deviation. 0 keeps the output exact; the router alone then sets the experts apart.
        seed (`int`, *optional*, defaults to 0): Seed of the routers' initial weights and of the noise.
        options (`Any`): Fields of `StrataConfig` about routing and training (`first_dense_layers`, `moe_layer_freq`,
            `router_aux_loss_coef`, `router_bias_update_rate`, `expert_capacity_factor`, ...).

    Returns:
        `StrataForCausalLM`: The sparse model, in evaluation mode, on the dense one's device and in its dtype.

    Raises:
        ValueError: If the model is not dense, the numbers do not fit each other, or an option would change the output.
    """
    config = dense.config
    if config.model_type != "strata" or config.num_experts:
        raise ValueError(
            f"dense = {type(dense).__name__} with num_experts = {getattr(config, 'num_experts', None)}; a dense "
            "Strata is upcycled (`from_hf` makes one of a Llama or Qwen3)."
        )
    if not noise >= 0 or noise == float("inf"):
        raise ValueError(f"noise = {noise}; a finite number of at least 0 is needed.")
    if not 1 <= num_experts_per_tok <= num_experts:
        raise ValueError(f"num_experts_per_tok = {num_experts_per_tok}; between 1 and num_experts = {num_experts}.")
    sizes = {
        "num_experts": num_experts,
        "num_experts_per_tok": num_experts_per_tok,
        "intermediate_size": config.intermediate_size,
    }
    for name, value in sizes.items():
        if granularity < 1 or value % granularity:
            raise ValueError(f"granularity = {granularity}; it must be at least 1 and divide {name} = {value}.")
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]} = {options[unknown[0]]!r}; options that may be set: {', '.join(_OPTIONS)}.")

    sparse_config = StrataConfig.from_dict(
        {
            **config.to_dict(),
            **sizes,
            "moe_intermediate_size": config.intermediate_size // granularity,
            "norm_topk_prob": True,
            "scoring_func": "softmax",
            "shared_expert_intermediate_size": 0,
            **options,
        }
    )
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in dense.state_dict().items():
        parts = name.split(".")  # model.layers.3.mlp.up_proj.weight
        if ".mlp." not in name or not sparse_config.is_sparse_layer(int(parts[2])):
            state[name] = value
            continue
        prefix = ".".join(parts[:4])
        if not name.endswith(".gate_proj.weight"):  # all three matrices of a layer are done at its first
            continue
        up, down = (dense.get_parameter(f"{prefix}.{matrix}_proj.weight").detach() for matrix in ("up", "down"))
        state |= _expert_bank(prefix, value, up, down, num_experts, granularity, noise, generator)
        groups = torch.randn(num_experts // granularity, config.hidden_size, generator=generator)
        router = (groups * config.initializer_range).repeat_interleave(granularity, dim=0)
        state[f"{prefix}.gate.weight"] = router.to(value)
    sparse = assemble(
        lambda: StrataForCausalLM._from_config(sparse_config, dtype=dense.dtype),
        state,
        dense.device,
        may_lack=(".e_score_correction_bias", ".noise_weight"),  # the constructor makes them zero
    )
    if dense.generation_config is not None:
        sparse.generation_config = copy.deepcopy(dense.generation_config)
    return sparse


def _expert_bank(
    prefix: str,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    num_experts: int,
    granularity: int,
    noise: float,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Fused bank of copies: expert `i * granularity + s` is slice s of copy i."""
    copies = num_experts // granularity
    gate_up = torch.cat([gate.unflatten(0, (granularity, -1)), up.unflatten(0, (granularity, -1))], dim=1)
    slices = down.unflatten(1, (granularity, -1)).transpose(0, 1) * granularity
    bank = {
        f"{prefix}.experts.gate_up_proj": gate_up.repeat(copies, 1, 1),
        f"{prefix}.experts.down_proj": slices.repeat(copies, 1, 1),
    }
    if noise > 0:
        for value in bank.values():
            draw = torch.randn(value.shape, generator=generator).to(value)
            value.add_(draw, alpha=noise * float(value.float().std()))
    return bank


__all__ = ["upcycle"]
