"""Parameter counts of a Strata model from its configuration alone.

`total` is what a checkpoint holds (a tied head once), `active` what one token uses, `matmul` the weights a token is
multiplied with in the forward pass: active parameters without norms and the embedding lookup, but with the head even
when it is tied. `6 * matmul` is the training compute per token without attention scores.
"""

from dataclasses import dataclass

from .configuration_strata import StrataConfig


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters.

    Args:
        total (`int`): All parameters, a tied head counted once.
        active (`int`): Parameters one token uses: `total` without the experts it is not sent to.
        embedding (`int`): Input embedding.
        head (`int`): Output head of its own; 0 when tied.
        non_embedding (`int`): `total` without embedding and head.
        active_non_embedding (`int`): `active` without embedding and head.
        matmul (`int`): Active weights in matrix products, head included.
    """

    total: int
    active: int
    embedding: int
    head: int
    non_embedding: int
    active_non_embedding: int
    matmul: int


def count_parameters(config: StrataConfig) -> ParameterCounts:
    """Count the parameters of `StrataForCausalLM(config)`.

    Args:
        config (`StrataConfig`): The model's configuration.

    Returns:
        `ParameterCounts`: The counts.
    """
    hidden, head_dim = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    attention = 2 * hidden * query + 2 * hidden * key
    biases = (query + 2 * key + hidden) if config.attention_bias else 0
    norms = 2 * hidden + (2 * head_dim if config.use_qk_norm else 0)
    expert = 3 * hidden * (config.moe_intermediate_size or 0)
    router = hidden * config.num_experts
    shared = 3 * hidden * config.shared_expert_intermediate_size
    noise = router if config.router_noise == "gaussian" else 0  # used in training only

    stored, active, matmul = hidden, hidden, 0
    for layer in range(config.num_hidden_layers):
        if config.is_sparse_layer(layer):
            used = router + shared + config.num_experts_per_tok * expert
            held = router + shared + config.num_experts * expert + noise
        else:
            used = held = 3 * hidden * config.intermediate_size
        stored += attention + biases + norms + held
        active += attention + biases + norms + used
        matmul += attention + used
    embedding = config.vocab_size * hidden
    head = 0 if config.tie_word_embeddings else embedding
    return ParameterCounts(
        total=stored + embedding + head,
        active=active + embedding + head,
        embedding=embedding,
        head=head,
        non_embedding=stored,
        active_non_embedding=active,
        matmul=matmul + embedding,
    )


__all__ = ["ParameterCounts", "count_parameters"]
