"""From a budget or a model to a plan: size, tokens, what other laws say, learning rate, repeats, time and cost.

Compute is C = 6 N D with total parameters (`6n_total`), the convention in which the laws were fitted; a run's own
FLOPs with attention are in `compute.py`. Everything the plan rests on is in it by name.
"""

from dataclasses import asdict, dataclass
from typing import Any

from hf_pretrain.planning.chinchilla import FLOP_CONVENTION, Allocation, ParametricLaw
from hf_pretrain.planning.cost import (
    DEFAULT_GOODPUT,
    DEFAULT_MFU,
    MFU_BAND,
    PRICES_AS_OF,
    Cluster,
    RunEstimate,
    estimate_run,
)
from hf_pretrain.planning.data_constrained import data_constrained_loss, data_constrained_optimum
from hf_pretrain.planning.hyperparameters import StepSizes, deepseek_step_sizes, minicpm_batch, step_law
from hf_pretrain.planning.lifetime import inference_optimum, lifetime_cost
from hf_pretrain.planning.quantities import ModelSize, format_count, positive
from hf_pretrain.planning.repetition import effective_tokens, repetition_advice
from hf_pretrain.planning.scaling_laws import (
    DEFAULT_LAW,
    WARN_EMBEDDING_SHARE,
    get_law,
    law_band,
    non_embedding_from_total,
)
from hf_pretrain.utils.errors import UserError


# Beyond these nobody has trained and no law was fitted: a number here has lost or gained a unit.
LARGEST_PARAMETERS, LARGEST_TOKENS = 1e15, 1e17
OVERTRAINING_RANGE = (20.0, 640.0)  # tokens a parameter over which arXiv 2403.08540 checked extrapolation


@dataclass(frozen=True)
class Repeats:
    """How often the unique tokens are seen.

    Args:
        unique_tokens (`float`): U.
        epochs (`float`): D / U.
        effective_tokens (`float`): Fresh tokens that would be worth as much.
        level (`str`): `"ok"`, `"warn"`, `"diminishing"` or `"refuse"`.
        advice (`str`): One sentence.
    """

    unique_tokens: float
    epochs: float
    effective_tokens: float
    level: str
    advice: str


@dataclass(frozen=True)
class Lifetime:
    """The model with the same loss that is cheapest when its use is counted.

    Args:
        inference_tokens (`float`): Tokens read or written over its life.
        parameters (`float`): N of the cheapest.
        tokens (`float`): Its training tokens.
        total_flops (`float`): Training and inference of the cheapest.
        plan_total_flops (`float`): The same for the plan.
        saving (`float`): Share of the plan's total that the cheapest saves.
    """

    inference_tokens: float
    parameters: float
    tokens: float
    total_flops: float
    plan_total_flops: float
    saving: float


@dataclass(frozen=True)
class RunPlan:
    """A plan and what it rests on.

    Args:
        law (`str`): Set of constants.
        param_convention (`str`): What `parameters` counts.
        parameters (`float`): N.
        tokens (`float`): D, repeats included.
        tokens_per_parameter (`float`): D / N.
        flops (`float`): C.
        flop_convention (`str`): How `flops` counts.
        loss (`float`): Nats a token by the law, repeats included.
        overtraining_premium (`float`): C over the least compute with the same loss on fresh tokens.
        non_embedding_parameters (`float`): Given, or estimated for a vocabulary of 32k.
        non_embedding_estimated (`bool`): Which of the two.
        band (`tuple[Allocation, ...]`): What each law would do with C.
        step_sizes (`tuple[StepSizes, ...]`): Learning rates and batches.
        repeats (`Repeats`, *optional*): When unique tokens were given.
        lifetime (`Lifetime`, *optional*): When inference tokens were given.
        cluster (`str`, *optional*): Devices, when they were given.
        mfu (`float`, *optional*): Assumed share of the peak.
        goodput (`float`, *optional*): Assumed share of the time.
        estimate (`RunEstimate`, *optional*): Time and cost on them.
        warnings (`tuple[str, ...]`): What to mind.
    """

    law: str
    param_convention: str
    parameters: float
    tokens: float
    tokens_per_parameter: float
    flops: float
    flop_convention: str
    loss: float
    overtraining_premium: float
    non_embedding_parameters: float
    non_embedding_estimated: bool
    band: tuple[Allocation, ...]
    step_sizes: tuple[StepSizes, ...]
    repeats: Repeats | None
    lifetime: Lifetime | None
    cluster: str | None
    mfu: float | None
    goodput: float | None
    estimate: RunEstimate | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON.

        Returns:
            `dict`: All fields; those of the band with their compute and ratio.
        """
        plain = asdict(self)
        for item, row in zip(self.band, plain["band"], strict=True):
            row |= {"flops": item.flops, "tokens_per_parameter": item.tokens_per_parameter}
        return plain


def make_plan(
    parameters: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    cluster: Cluster | None = None,
    days: float | None = None,
    mfu: float = DEFAULT_MFU,
    goodput: float = DEFAULT_GOODPUT,
    price: float | None = None,
    overhead: float = 0.0,
    unique_tokens: float | None = None,
    inference_tokens: float | None = None,
    non_embedding_parameters: float | None = None,
    law: str = DEFAULT_LAW,
) -> RunPlan:
    """Plans a run.

    Args:
        parameters (`float`, *optional*): N, total. Alone: its compute-optimal tokens.
        tokens (`float`, *optional*): D. Alone: the size for which they are compute-optimal.
        flops (`float`, *optional*): C. Alone: the optimal split; with N or D: the other one.
        cluster (`Cluster`, *optional*): Devices, for time and cost.
        days (`float`, *optional*): With a cluster, the budget is what it does in these days.
        mfu (`float`, *optional*, defaults to 0.4): Share of the peak used while training.
        goodput (`float`, *optional*, defaults to 0.9): Share of the time that trains.
        price (`float`, *optional*): Per device-hour; a dated table's range by default.
        overhead (`float`, *optional*, defaults to 0.0): Share on top of the devices' price.
        unique_tokens (`float`, *optional*): Distinct tokens at hand.
        inference_tokens (`float`, *optional*): Tokens over the model's life.
        non_embedding_parameters (`float`, *optional*): N without embeddings; estimated by default.
        law (`str`, *optional*, defaults to `"epoch"`): Set of constants.

    Returns:
        `RunPlan`: The plan.

    Raises:
        UserError: If too little or too much is given, or a number cannot be right.
    """
    chosen = get_law(law)
    if days is not None:
        if cluster is None or flops is not None:
            raise UserError(
                f"days = {days:g}; they need gpus, and no flops beside them: together they are the budget."
            )
        flops = cluster.flops_in(days, mfu, goodput)
    size, data = _split(chosen, parameters, tokens, flops, unique_tokens)
    budget = positive("flops", 6 * size * data)
    warnings = _split_warnings(chosen, size, data)
    loss = chosen.loss(size, data)
    premium = chosen.overtraining_premium(size, data)
    repeats = None
    if unique_tokens is not None:
        repeats = _repeats(data, unique_tokens)
        if repeats.epochs > 1:
            loss = data_constrained_loss(size, data, unique_tokens, chosen)
        if repeats.level != "ok":
            warnings.append(repeats.advice)
    estimated = non_embedding_parameters is None
    bare = non_embedding_from_total(size) if estimated else ModelSize(non_embedding_parameters, "non_embedding")
    if bare.value > size:
        raise UserError(f"non_embedding_parameters = {bare.value:g}; they are part of parameters = {size:g}.")
    share = 1 - bare.value / size
    if share > WARN_EMBEDDING_SHARE:
        warnings.append(
            f"about {share:.0%} of the parameters are embeddings: laws that count them and laws that do not disagree "
            "here."
        )
    lifetime = None
    if inference_tokens is not None:
        lifetime = _lifetime(chosen, size, data, inference_tokens)
        if unique_tokens is not None and lifetime.tokens > unique_tokens:
            warnings.append(
                f"the model that is cheapest over its life needs {format_count(lifetime.tokens)} fresh tokens, more "
                "than there are."
            )
    estimate = None
    if cluster is not None:
        estimate = estimate_run(budget, cluster, mfu, goodput, price, overhead)
        if not MFU_BAND[0] <= mfu <= MFU_BAND[1]:
            warnings.append(f"mfu = {mfu:g}; published runs lie between {MFU_BAND[0]:g} and {MFU_BAND[1]:g}.")
        if price is None and estimate.price_low is not None:
            warnings.append(f"prices are a range of {PRICES_AS_OF}, for orientation: give your own with --price.")
        if price is None and estimate.price_low is None:
            warnings.append(f"no price is known for {cluster.device.name}: give one with --price.")
    elif price is not None:
        raise UserError(f"price = {price:g}; it needs gpus, as in --gpus 64xH100.")
    return RunPlan(
        law=chosen.name,
        param_convention=chosen.param_convention,
        parameters=size,
        tokens=data,
        tokens_per_parameter=data / size,
        flops=budget,
        flop_convention=FLOP_CONVENTION,
        loss=loss,
        overtraining_premium=premium,
        non_embedding_parameters=bare.value,
        non_embedding_estimated=estimated,
        band=tuple(law_band(budget, chosen.param_convention)),
        step_sizes=(deepseek_step_sizes(budget), step_law(bare, data), minicpm_batch(loss)),
        repeats=repeats,
        lifetime=lifetime,
        cluster=None if cluster is None else f"{cluster.num_devices}x{cluster.device.name}",
        mfu=None if cluster is None else mfu,
        goodput=None if cluster is None else goodput,
        estimate=estimate,
        warnings=tuple(warnings),
    )


def _split(
    law: ParametricLaw,
    parameters: float | None,
    tokens: float | None,
    flops: float | None,
    unique_tokens: float | None,
) -> tuple[float, float]:
    """N and D from what is given."""
    given = {"parameters": parameters, "tokens": tokens, "flops": flops, "unique_tokens": unique_tokens}
    for name, value in given.items():
        if value is not None:
            positive(name, value)
    if parameters is not None and tokens is not None and flops is not None:
        raise UserError("parameters, tokens and a budget are all given; two of them decide the third: leave one out.")
    if parameters is None and tokens is None and flops is None:
        raise UserError("nothing to plan from; give parameters and tokens, or flops, or gpus and days.")
    if flops is None:
        if tokens is None:
            best = law.optimum_for_parameters(parameters)
            size, data = parameters, best.tokens
        else:
            size = law.optimum_for_tokens(tokens).parameters if parameters is None else parameters
            data = tokens
    elif parameters is not None:
        size, data = parameters, flops / (6 * parameters)
    elif tokens is not None:
        size, data = flops / (6 * tokens), tokens
    else:
        best = law.optimum(flops) if unique_tokens is None else data_constrained_optimum(flops, unique_tokens, law)
        size, data = best.parameters, best.tokens
    for name, value, largest in (("parameters", size, LARGEST_PARAMETERS), ("tokens", data, LARGEST_TOKENS)):
        if not 1e3 <= value <= largest:
            raise UserError(f"{name} = {value:.3g}; that is outside of what any law covers: look at the units.")
    return float(size), float(data)


def _split_warnings(law: ParametricLaw, size: float, data: float) -> list[str]:
    warnings = []
    ratio = data / size
    if law.name.startswith("hoffmann"):
        warnings.append(
            f"the constants '{law.name}' ask for more tokens than the paper's own 20 a parameter; 'epoch' refits them."
        )
    if ratio > OVERTRAINING_RANGE[1]:
        warnings.append(
            f"{ratio:.0f} tokens a parameter are beyond the {OVERTRAINING_RANGE[1]:g} up to which over-training was "
            "checked: the loss is an extrapolation."
        )
    elif ratio < 1:
        warnings.append(f"{ratio:.2g} tokens a parameter: far below every law; are N and D swapped?")
    return warnings


def _repeats(tokens: float, unique_tokens: float) -> Repeats:
    epochs = tokens / unique_tokens
    level, advice = repetition_advice(epochs)
    return Repeats(unique_tokens, epochs, effective_tokens(tokens, unique_tokens), level, advice)


def _lifetime(law: ParametricLaw, size: float, data: float, inference_tokens: float) -> Lifetime:
    served = positive("inference_tokens", inference_tokens)
    best = inference_optimum(law, law.loss(size, data), served)
    total = lifetime_cost(best.parameters, best.tokens, served)
    plan_total = lifetime_cost(size, data, served)
    return Lifetime(served, best.parameters, best.tokens, total, plan_total, 1 - total / plan_total)
