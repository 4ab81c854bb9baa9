"""Ladders: small runs over model sizes and token counts, from which a law is fitted before the large run.

A rung is one size with one token count, its learning rate decayed at the end; losses read off in the middle of a
longer run are not comparable (arXiv 2203.15556). Widths and depths follow one family, so that N alone changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_pretrain.planning.counting import ParameterCount, count_parameters
from hf_pretrain.planning.hyperparameters import step_law
from hf_pretrain.planning.quantities import ModelSize, parse_count, parse_flops, positive
from hf_pretrain.utils.errors import UserError


MIN_RUNGS = 5
# Tokens over parameters without embeddings that a ladder for a budget covers.
BUDGET_RATIOS = (5.0, 10.0, 20.0, 40.0)
BUDGET_SIZE_RANGE = 30.0
_ASPECT_AT = (1e5, 32.0, 0.125)  # width over depth: 32 at 1e5 parameters, 76 at 1e8, 135 at 1e10
_HEAD_DIMS = ((5e6, 32), (3e8, 64), (math.inf, 128))


@dataclass(frozen=True)
class Rung:
    """One run of a ladder.

    Args:
        name (`str`): For example `"n98k_d500k"`.
        model (`dict[str, Any]`): Fields of `StrataConfig`.
        counts (`ParameterCount`): Of the model.
        tokens (`int`): D.
        learning_rate (`float`): Peak.
        held_out (`bool`, *optional*, defaults to `False`): Whether it is kept out of the fit, to test it.
    """

    name: str
    model: dict[str, Any]
    counts: ParameterCount
    tokens: int
    learning_rate: float
    held_out: bool = False

    @property
    def flops(self) -> float:
        """`float`: 6 N D with total parameters."""
        return 6.0 * self.counts.total * self.tokens


@dataclass
class LadderConfig:
    """What a `ladder.yaml` says.

    Args:
        corpus (`str`): A corpus stage file's name beside it (`1_corpus`), or the folder of a finished corpus stage.
        run_dir (`str`): Folder of all that the ladder makes.
        vocab_size (`int`): Of the corpus' tokenizer; counts and cost need it.
        sizes (`list[str | float]`, *optional*): Wanted parameters without embeddings, like `100k`.
        tokens (`list[str | float]`, *optional*): Token counts, like `2M`. With `sizes` every pair is a rung.
        budget (`str` or `float`, *optional*): Instead of the two: FLOPs that the whole ladder may cost.
        max_flops (`str` or `float`, *optional*): Pairs that cost more, by 6 N D, are left out.
        held_out (`list[dict]`, *optional*): Runs outside the fit, `{size: 3M, tokens: 2M}`.
        learning_rate (`str` or `float`, *optional*, defaults to `"step_law"`): A number for all, or by the law.
        max_learning_rate (`float`, *optional*, defaults to 0.01): Upper end of what the law may say.
        model (`dict[str, Any]`, *optional*): Fields of `StrataConfig` for all rungs.
        training (`dict[str, Any]`, *optional*): Keys of a pretrain stage for all rungs.
    """

    corpus: str
    run_dir: str
    vocab_size: int
    sizes: list[str | int | float] | None = None
    tokens: list[str | int | float] | None = None
    budget: str | int | float | None = None
    max_flops: str | int | float | None = None
    held_out: list[dict[str, str | int | float]] = field(default_factory=list)
    learning_rate: str | float = "step_law"
    max_learning_rate: float = 0.01
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.sizes is None) != (self.tokens is None) or (self.sizes is None) == (self.budget is None):
            raise UserError("sizes and tokens, or budget: give the two lists, or the one budget, and not both.")
        if isinstance(self.learning_rate, str) and self.learning_rate != "step_law":
            try:
                self.learning_rate = float(self.learning_rate)  # YAML takes 2e-3 for a text
            except ValueError:
                raise UserError(f"learning_rate = {self.learning_rate!r}; a number or step_law is expected.") from None
        positive("max_learning_rate", self.max_learning_rate)
        positive("vocab_size", self.vocab_size)
        for key in ("train_tokens", "max_steps", "learning_rate", "stage", "run_dir", "corpus", "model"):
            if key in self.training:
                raise UserError(f"training.{key}: the ladder sets it for each rung; leave it out.")


def strata_shape(non_embedding: float, vocab_size: int, **fields: Any) -> dict[str, Any]:
    """Chooses width and depth of a dense Strata with about so many parameters.

    A layer of width d has 12 d^2 parameters (attention 4 d^2, SwiGLU of width 8/3 d); width over depth grows slowly
    with size, as it does in published families.

    Args:
        non_embedding (`float`): Wanted parameters without embedding and head.
        vocab_size (`int`): Of the tokenizer.
        **fields (`Any`): Further fields of `StrataConfig`; those of the shape win over the choice.

    Returns:
        `dict[str, Any]`: Fields of `StrataConfig`, without the vocabulary (the corpus gives it).

    Raises:
        UserError: If so small a model cannot be built, or a field makes the wanted size impossible.

    Example:

        >>> strata_shape(1e6, 2048)["hidden_size"], strata_shape(1e6, 2048)["num_hidden_layers"]
        (128, 5)
    """
    wanted = positive("parameters without embeddings", non_embedding)
    size, ratio, power = _ASPECT_AT
    aspect = ratio * (wanted / size) ** power
    head = fields.get("head_dim") or next(dim for limit, dim in _HEAD_DIMS if wanted < limit)
    best: tuple[float, dict[str, Any]] | None = None
    for heads in range(1, 257):
        width = head * heads
        depth = max(1, round(wanted / (12 * width * width)))
        if depth > 256:
            continue
        shape = {
            "hidden_size": width,
            "intermediate_size": 16 * max(1, round(width / 6)),
            "num_hidden_layers": depth,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": head,
            "tie_word_embeddings": True,
            **fields,
        }
        off = abs(math.log(rung_counts(shape, vocab_size).non_embedding / wanted))
        score = 4 * off + abs(math.log(shape["hidden_size"] / shape["num_hidden_layers"] / aspect))
        if off < 0.35 and (best is None or score < best[0]):
            best = (score, shape)
    if best is None:
        raise UserError(
            f"size = {wanted:g}; no dense model with heads of {head} comes near it: ask for more parameters without "
            "embeddings, or fix fewer fields of the shape."
        )
    return best[1]


def rung_counts(model: Mapping[str, Any], vocab_size: int) -> ParameterCount:
    """Counts a rung's parameters.

    Args:
        model (`Mapping[str, Any]`): Fields of `StrataConfig`.
        vocab_size (`int`): Of the tokenizer.

    Returns:
        `ParameterCount`: As the model itself counts them.
    """
    # What StrataConfig fills in where a field is not given.
    defaults = {"model_type": "strata", "tie_word_embeddings": True, "use_qk_norm": True}
    return count_parameters({**defaults, "vocab_size": vocab_size, **model})


def plan_ladder(config: LadderConfig) -> list[Rung]:
    """Lists the rungs of a ladder, cheapest first, those held out last.

    Args:
        config (`LadderConfig`): What is wanted.

    Returns:
        `list[Rung]`: The runs.

    Raises:
        UserError: If fewer than five rungs are left for the fit, or a value cannot be read.
    """
    if config.budget is not None:
        pairs = _pairs_for_budget(parse_flops(str(config.budget)), config)
    else:
        sizes = [parse_count(str(text), "sizes") for text in config.sizes or ()]
        tokens = [parse_count(str(text), "tokens") for text in config.tokens or ()]
        pairs = [(size, count) for size in sizes for count in tokens]
    limit = math.inf if config.max_flops is None else parse_flops(str(config.max_flops))
    rungs = [_rung(config, size, tokens, False) for size, tokens in pairs]
    kept = sorted((rung for rung in rungs if rung.flops <= limit), key=lambda rung: rung.flops)
    if len({rung.name for rung in kept}) < MIN_RUNGS:
        raise UserError(
            f"the ladder has {len(kept)} rungs within max_flops = {config.max_flops}; at least {MIN_RUNGS} are needed "
            "for a fit: add sizes or tokens, or raise the limit."
        )
    for entry in config.held_out:
        if set(entry) != {"size", "tokens"}:
            raise UserError(f"held_out: {entry}; an entry is {{size: 3M, tokens: 2M}}.")
        size, tokens = (parse_count(str(entry[key]), f"held_out.{key}") for key in ("size", "tokens"))
        kept.append(_rung(config, size, tokens, True))
    names = [rung.name for rung in kept]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the rung {twice} is there twice; sizes so close to each other give the same shape.")
    return kept


def _rung(config: LadderConfig, size: float, tokens: float, held_out: bool) -> Rung:
    model = strata_shape(size, config.vocab_size, **config.model)
    counts = rung_counts(model, config.vocab_size)
    if isinstance(config.learning_rate, str):
        law = step_law(ModelSize(counts.non_embedding, "non_embedding"), tokens).learning_rate or 0.0
        rate = float(f"{min(law, config.max_learning_rate):.2e}")
    else:
        rate = positive("learning_rate", config.learning_rate)
    name = f"n{_short(counts.non_embedding)}_d{_short(tokens)}"
    return Rung(name, model, counts, round(tokens), rate, held_out)


def _pairs_for_budget(budget: float, config: LadderConfig, sizes: int = 4) -> list[tuple[float, float]]:
    """Sizes over a factor of 30 and tokens by them, scaled until the whole costs the budget.

    Embeddings make the cost no pure square of the size, so the scale is found by halving.
    """
    steps = [BUDGET_SIZE_RANGE ** (index / (sizes - 1) - 1) for index in range(sizes)]
    low, high = 1e4, 1e12

    def pairs(largest: float) -> list[tuple[float, float]]:
        return [(largest * step, largest * step * ratio) for step in steps for ratio in BUDGET_RATIOS]

    def cost(largest: float) -> float:
        return sum(6.0 * (size + config.vocab_size * _width(size)) * tokens for size, tokens in pairs(largest))

    if cost(low * BUDGET_SIZE_RANGE) > budget:
        raise UserError(
            f"budget = {budget:g}; the smallest ladder costs {cost(low * BUDGET_SIZE_RANGE):.2g} FLOPs: give more, or "
            "name sizes and tokens."
        )
    low *= BUDGET_SIZE_RANGE
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= budget else (low, middle)
    return pairs(low)


def _width(size: float) -> float:
    """Width of the family's model: 12 d^2 L = N with d / L by the aspect."""
    base, ratio, power = _ASPECT_AT
    return (size * ratio * (size / base) ** power / 12) ** (1 / 3)


def _short(value: float) -> str:
    for unit, scale in (("b", 1e9), ("m", 1e6), ("k", 1e3)):
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g}{unit}".replace(".", "p")
    return f"{value:.0f}"


def stage_keys(rung: Rung, config: LadderConfig, corpus: str, run_dir: str) -> dict[str, Any]:
    """Writes a rung as the keys of a pretrain stage.

    Args:
        rung (`Rung`): The run.
        config (`LadderConfig`): The ladder.
        corpus (`str`): Folder of the corpus stage.
        run_dir (`str`): Run folder of the rung.

    Returns:
        `dict[str, Any]`: Keys in the order of a recipe.
    """
    return {
        "stage": "pretrain",
        "run_dir": run_dir,
        "corpus": corpus,
        "model": dict(rung.model),
        "train_tokens": rung.tokens,
        "learning_rate": rung.learning_rate,
        **config.training,
    }


def time_left(done_flops: Sequence[float], seconds: Sequence[float], rest: Sequence[float]) -> float | None:
    """Seconds that the remaining rungs will take at the speed of those that ran.

    Args:
        done_flops (`Sequence[float]`): Of the rungs that ran.
        seconds (`Sequence[float]`): What they took.
        rest (`Sequence[float]`): FLOPs of those to come.

    Returns:
        `float`: Seconds; `None` before the first has run.
    """
    spent = sum(seconds)
    if not done_flops or spent <= 0:
        return None
    return sum(rest) / (sum(done_flops) / spent)
