"""Decisions that a plan has to make and no law makes alone: tying, sparsity, repeats, continuing, warm-up, decay.

Each is a rule with its numbers and where they are from; the thresholds are arguments, because none of them is a law of
nature. A choice that lies near a threshold says so.
"""

import math
from dataclasses import dataclass

from hf_pretrain.planning.moe_laws import experts_loss_ratio
from hf_pretrain.planning.quantities import ModelSize, format_count, positive, size_under
from hf_pretrain.planning.repetition import effective_tokens, repetition_advice
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


# Share of the tokens that replays the old data: en -> en, en -> de (arXiv 2403.08763).
REPLAY = {"weak": 0.05, "strong": 0.25}
_REPEAT_CHOICES = {
    "ok": "repeat freely",
    "warn": "repeat, at a loss",
    "diminishing": "add data before repeats",
    "refuse": "find more data or train less",
}


@dataclass(frozen=True)
class Advice:
    """One decision.

    Args:
        topic (`str`): What is decided, e.g. `"embeddings"`.
        choice (`str`): What to do, e.g. `"tie"`.
        reason (`str`): The rule with this run's numbers.
        source (`str`): Where the rule is from.
    """

    topic: str
    choice: str
    reason: str
    source: str


def advise_tying(
    non_embedding: ModelSize | float, vocab_size: int, hidden_size: int, tie_above: float = 0.15
) -> Advice:
    """Tie the head to the embedding when both together would be a large share of the parameters.

    Args:
        non_embedding (`ModelSize` or `float`): Parameters without embedding and head.
        vocab_size (`int`): V.
        hidden_size (`int`): d.
        tie_above (`float`, *optional*, defaults to 0.15): Share of embedding and head, untied, above which to tie.

    Returns:
        `Advice`: `"tie"` or `"untie"`.

    Raises:
        UserError: If a size is not positive, or the threshold no share.
    """
    body = size_under(non_embedding, "non_embedding", "advise_tying")
    matrix = positive("vocab_size", vocab_size) * positive("hidden_size", hidden_size)
    share = 2 * matrix / (body + 2 * matrix)
    near = "; close to the threshold, so either will do" if abs(share - _share("tie_above", tie_above)) < 0.05 else ""
    return Advice(
        "embeddings",
        "tie" if share > tie_above else "untie",
        f"embedding and head would be {share:.1%} of the parameters untied (tie above {tie_above:.0%}); tying saves "
        f"{format_count(matrix)}{near}",
        "configurations on the Hub: Llama-3.2-1B and 3B are tied (35 % and 22 % untied), Llama-3-8B (13 %), "
        "Llama-2-7B (4 %) and 70B are not",
    )


def advise_sparsity(
    active: ModelSize | float,
    tokens: float,
    experts: float = 8,
    min_gain: float = 0.02,
    memory_bound: bool = False,
) -> Advice:
    """Mixture of experts when its lower loss at equal compute is worth the memory of all experts.

    Args:
        active (`ModelSize` or `float`): Parameters that a token uses.
        tokens (`float`): D.
        experts (`float`, *optional*, defaults to 8): Effective number of experts of the sparse model.
        min_gain (`float`, *optional*, defaults to 0.02): Share of the loss that it has to save.
        memory_bound (`bool`, *optional*, defaults to `False`): Whether memory, at training or serving, is what limits
            the model; then it is dense.

    Returns:
        `Advice`: `"mixture of experts"` or `"dense"`.

    Raises:
        UserError: If a number is out of range.
    """
    ratio = experts_loss_ratio(active, tokens, experts)
    gain = 1 - ratio
    words = (
        f"{experts:g} experts change the loss by {-gain:+.1%} at the same active parameters and tokens; all experts' "
        "weights and optimizer state have to be held, about 16 bytes a parameter"
    )
    if gain < 0:
        words = f"the law says that {words}: so small a run lies outside of it"
    if memory_bound:
        return Advice("sparsity", "dense", f"memory is the limit: {words}", "arXiv 2502.05172, advisory")
    sparse = gain >= _share("min_gain", min_gain)
    reason = f"{words}; worth it from {min_gain:.1%}"
    return Advice("sparsity", "mixture of experts" if sparse else "dense", reason, "arXiv 2502.05172, advisory")


def advise_repeats(tokens: float, unique_tokens: float) -> Advice:
    """Repeat data while a repeated token is worth nearly a fresh one.

    Args:
        tokens (`float`): D, repeats included.
        unique_tokens (`float`): U.

    Returns:
        `Advice`: `"no repeats"`, `"repeat freely"` (up to 4 epochs), `"repeat, at a loss"` (up to 16),
        `"add data before repeats"` (up to 40), `"find more data or train less"`.

    Raises:
        UserError: If a count is not positive.
    """
    epochs = positive("tokens", tokens) / positive("unique_tokens", unique_tokens)
    level, words = repetition_advice(epochs)
    worth = format_count(effective_tokens(tokens, unique_tokens))
    return Advice(
        "repeats",
        "no repeats" if epochs <= 1 else _REPEAT_CHOICES[level],
        f"{words.rstrip('.')}: {format_count(tokens)} tokens seen are worth {worth} fresh ones",
        "arXiv 2305.16264",
    )


def advise_continuing(
    domain_tokens: float, shift: str = "weak", continue_from: float = 1e9, replay: float | None = None
) -> Advice:
    """Continue pretraining when the new domain has enough text, with replay of the old; else fine-tune.

    Args:
        domain_tokens (`float`): Tokens of the new domain.
        shift (`str`, *optional*, defaults to `"weak"`): `"weak"` (the same language) or `"strong"` (another one).
        continue_from (`float`, *optional*, defaults to 1e9): Tokens from which continuing pays; a rule of thumb.
        replay (`float`, *optional*): Share of old data; by default 0.05 for a weak and 0.25 for a strong shift.

    Returns:
        `Advice`: `"continue pretraining"` or `"fine-tune"`.

    Raises:
        UserError: If a number is out of range, or the shift unknown.
    """
    if shift not in REPLAY:
        raise UserError(unknown_name_message("shift", shift, REPLAY))
    new = positive("domain_tokens", domain_tokens)
    share = REPLAY[shift] if replay is None else replay
    if not 0 <= share < 1:
        raise UserError(f"replay = {replay!r}; a share of at least 0 and below 1 is needed.")
    limit = positive("continue_from", continue_from)
    if new < limit:
        return Advice(
            "new domain",
            "fine-tune",
            f"{format_count(new)} tokens are below {format_count(limit)}, from where continuing is known to pay",
            "rule of thumb",
        )
    return Advice(
        "new domain",
        "continue pretraining",
        f"{format_count(new)} tokens reach {format_count(limit)}; warm up again and decay again, with {share:.0%} "
        f"of the tokens replayed from the old data ({shift} shift): of {format_count(new)} in all, "
        f"{format_count(new * (1 - share))} new; start before the old decay if that checkpoint is there",
        "arXiv 2403.08763; the token limit is a rule of thumb",
    )


def advise_warmup(steps: int, fraction: float = 0.01, at_least: int = 100, at_most: int = 2000) -> Advice:
    """Warm up over a small share of the steps, within bounds that published runs share.

    Args:
        steps (`int`): Optimizer steps of the run.
        fraction (`float`, *optional*, defaults to 0.01): Share of them.
        at_least (`int`, *optional*, defaults to 100): Steps; never more than a tenth of the run.
        at_most (`int`, *optional*, defaults to 2000): Steps.

    Returns:
        `Advice`: `"... steps"`.

    Raises:
        UserError: If a number is out of range.
    """
    total = positive("steps", steps)
    if not 0 < at_least <= at_most:
        raise UserError(f"at_least = {at_least}, at_most = {at_most}; two rising numbers of steps are needed.")
    low = min(at_least, math.ceil(total / 10))
    chosen = max(low, min(round(_share("fraction", fraction) * total), at_most))
    return Advice(
        "warm-up",
        f"{chosen} steps",
        f"{fraction:.1%} of {total:.0f} steps, between {low} and {at_most}: {chosen / total:.2%} of the run",
        "OLMo-2-7B and SmolLM3 warm up over 2,000 steps of 0.9M and 4.7M; after a restart its length hardly matters "
        "(arXiv 2403.08763)",
    )


def advise_decay(steps: int, fraction: float = 0.1, tokens_per_parameter: float | None = None) -> Advice:
    """Decay to zero at the end of a constant phase, long enough to collect what the decay gives.

    Args:
        steps (`int`): Optimizer steps of the run.
        fraction (`float`, *optional*, defaults to 0.1): Share of them that decays.
        tokens_per_parameter (`float`, *optional*): D / N; says whether to decay to zero was measured to be better.

    Returns:
        `Advice`: `"... steps, linearly to 0"`.

    Raises:
        UserError: If a number is out of range.
    """
    chosen = max(1, round(_share("fraction", fraction) * positive("steps", steps)))
    words = f"{fraction:.1%} of {steps} steps; about 10 % suffice, 20 % were best for short runs"
    if fraction < 0.05:
        words += "; 2.5 % were measured not to suffice: decay longer"
    if tokens_per_parameter is not None and positive("tokens_per_parameter", tokens_per_parameter) >= 20:
        words += f"; at {tokens_per_parameter:.0f} tokens a parameter, zero at the end beats a tenth of the peak"
    return Advice(
        "decay",
        f"{chosen} steps, linearly to 0",
        words,
        "MiniCPM (arXiv 2404.06395), arXiv 2405.18392 and 2502.15938; SmolLM2 10 %, SmolLM3 11 %",
    )


def advise(
    tokens: float,
    active: ModelSize | float | None = None,
    non_embedding: ModelSize | float | None = None,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    unique_tokens: float | None = None,
    steps: int | None = None,
    domain_tokens: float | None = None,
    memory_bound: bool = False,
) -> list[Advice]:
    """All advice that what is known of a run allows.

    Args:
        tokens (`float`): D.
        active (`ModelSize` or `float`, *optional*): Parameters that a token uses, with embeddings.
        non_embedding (`ModelSize` or `float`, *optional*): Parameters without embedding and head.
        vocab_size (`int`, *optional*): V.
        hidden_size (`int`, *optional*): d.
        unique_tokens (`float`, *optional*): U.
        steps (`int`, *optional*): Optimizer steps.
        domain_tokens (`float`, *optional*): Tokens of a new domain, for a run that goes on from a trained model.
        memory_bound (`bool`, *optional*, defaults to `False`): See [`advise_sparsity`].

    Returns:
        `list[Advice]`: In the order in which the decisions are made.
    """
    found = []
    if non_embedding is not None and vocab_size is not None and hidden_size is not None:
        found.append(advise_tying(non_embedding, vocab_size, hidden_size))
    if active is not None:
        found.append(advise_sparsity(active, tokens, memory_bound=memory_bound))
    if unique_tokens is not None:
        found.append(advise_repeats(tokens, unique_tokens))
    if domain_tokens is not None:
        found.append(advise_continuing(domain_tokens))
    if steps is not None:
        found.append(advise_warmup(steps))
        ratio = None if active is None else tokens / (active.value if isinstance(active, ModelSize) else active)
        found.append(advise_decay(steps, tokens_per_parameter=ratio))
    return found


def _share(name: str, value: float) -> float:
    if not 0 < positive(name, value) < 1:
        raise UserError(f"{name} = {value!r}; a share between 0 and 1 is needed.")
    return value
