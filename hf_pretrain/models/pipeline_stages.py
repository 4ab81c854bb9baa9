"""How the tensors of a decoder divide into pipeline stages: whole layers in order, as even as they come.

The embedding belongs to the first stage, the final norm and the head to the last. A tied head is needed at both ends.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def pipeline_stages(shapes: Mapping[str, Sequence[int]], num_layers: int, num_stages: int) -> list[dict[str, Any]]:
    """Divides tensors into pipeline stages.

    Args:
        shapes (`Mapping[str, Sequence[int]]`): Shape of every stored tensor by its name.
        num_layers (`int`): Decoder layers.
        num_stages (`int`): Stages, at most `num_layers`.

    Returns:
        `list[dict]`: For each stage `layers` (first, and one after the last), `tensors` (names) and `parameters`.

    Raises:
        ValueError: If there are more stages than layers, or a tensor belongs to no layer that there is.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"stages = {num_stages}; the model has {num_layers} layers: allowed are 1 to {num_layers}.")
    ends = [math.ceil(num_layers * (stage + 1) / num_stages) for stage in range(num_stages)]
    tensors: list[list[str]] = [[] for _ in range(num_stages)]
    for name in shapes:
        found = _LAYER.search(name)
        if found is None:
            stage = 0 if "embed_tokens" in name else num_stages - 1
        else:
            layer = int(found.group(1))
            if layer >= num_layers:
                raise ValueError(f"{name}: the configuration has {num_layers} layers; the checkpoint is of another.")
            stage = next(index for index, end in enumerate(ends) if layer < end)
        tensors[stage].append(name)
    return [
        {
            "layers": [ends[stage - 1] if stage else 0, ends[stage]],
            "tensors": names,
            "parameters": sum(math.prod(shapes[name]) for name in names),
        }
        for stage, names in enumerate(tensors)
    ]
