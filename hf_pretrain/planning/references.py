"""Published models as points of reference: size, tokens, compute; and what moved the exponent of the optimal size.

A plan's tokens a parameter are shown beside these. Sizes are exact where the checkpoint is public, else nominal.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReferenceModel:
    """A model and the tokens it was trained on.

    Args:
        name (`str`): Its name.
        parameters (`float`): N with embeddings.
        tokens (`float`): D.
    """

    name: str
    parameters: float
    tokens: float

    @property
    def tokens_per_parameter(self) -> float:
        """`float`: D / N."""
        return self.tokens / self.parameters

    @property
    def flops(self) -> float:
        """`float`: 6 N D."""
        return 6 * self.parameters * self.tokens


REFERENCE_MODELS: tuple[ReferenceModel, ...] = (
    ReferenceModel("Gopher 280B", 280e9, 300e9),
    ReferenceModel("GPT-3 175B", 175e9, 300e9),
    ReferenceModel("Chinchilla 70B", 70e9, 1.4e12),
    ReferenceModel("Llama-2-7B", 6_738_415_616, 2e12),
    ReferenceModel("Llama-3-70B", 70_553_706_496, 15e12),
    ReferenceModel("Llama-3-8B", 8_030_261_248, 15e12),
    ReferenceModel("SmolLM2-1.7B", 1_711_376_384, 11e12),
)

# Exponent of N_opt in C on RefinedWeb while one choice after the other is mended (arXiv 2406.19146): how Kaplan's
# 0.73 and Chinchilla's 0.50 come from the same runs.
EXPONENT_BY_CORRECTION: dict[str, float] = {
    "as Kaplan et al.": 0.835,
    "FLOPs of the last layer counted": 0.706,
    "warm-up scaled with size": 0.602,
    "cosine matched to the budget": 0.571,
    "rate, batch and beta2 tuned for each size": 0.497,
}

# Exponent of model scale in C by data (arXiv 2401.02954): better data asks for more of the compute in the model.
EXPONENT_BY_DATA: dict[str, float] = {"early in-house": 0.450, "current in-house": 0.524, "OpenWebText2": 0.578}


def nearest_references(tokens_per_parameter: float, count: int = 3) -> list[ReferenceModel]:
    """Published models that were trained about as long for their size.

    Args:
        tokens_per_parameter (`float`): D / N of a plan.
        count (`int`, *optional*, defaults to 3): How many.

    Returns:
        `list[ReferenceModel]`: Nearest in ratio, ordered by tokens a parameter.
    """
    near = sorted(
        REFERENCE_MODELS,
        key=lambda model: max(
            model.tokens_per_parameter / tokens_per_parameter, tokens_per_parameter / model.tokens_per_parameter
        ),
    )
    return sorted(near[:count], key=lambda model: model.tokens_per_parameter)
