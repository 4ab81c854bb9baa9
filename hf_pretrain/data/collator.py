"""Batches of packed windows, without an attention mask.

transformers keeps packed documents apart by `position_ids` that restart, but only where no attention mask is given: an
all-ones mask lets later documents see earlier ones and nothing warns. So a mask is never made here.
"""

from collections.abc import Sequence
from typing import Any

import torch

from hf_pretrain.utils.errors import UserError


class PretrainDataCollator:
    """Stacks samples of [`~hf_pretrain.data.mixture.MixtureDataset`] to a batch.

    Args:
        keep_provenance (`bool`, *optional*, defaults to `False`): Whether `sample_index` and `source_index` go along.
            Models do not take them; set this to look at batches.
        count_targets (`bool`, *optional*, defaults to `False`): Whether `num_targets` goes along, the number of labels
            that count as an `int`. `PretrainTrainer` takes it out again.
    """

    def __init__(self, keep_provenance: bool = False, count_targets: bool = False) -> None:
        self.keep_provenance = keep_provenance
        self.count_targets = count_targets

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Makes a batch.

        Args:
            features (`Sequence[dict[str, Any]]`): Samples of one length.

        Returns:
            `dict[str, Any]`: `input_ids`, `labels`, `position_ids` of shape `[batch, seq_length]`, int64.

        Raises:
            UserError: If a sample has no `position_ids`, or lengths differ.
        """
        keys = ["input_ids", "labels", "position_ids"]
        missing = [key for key in keys if key not in features[0]]
        if missing:
            raise UserError(
                f"PretrainDataCollator: the samples have no {', '.join(missing)}; use "
                "MixtureDataset, or give position_ids that "
                "restart at every document"
            )
        lengths = {len(feature["input_ids"]) for feature in features}
        if len(lengths) > 1:
            raise UserError(
                f"PretrainDataCollator: samples of {sorted(lengths)} tokens in one batch; all must be of one length"
            )
        batch = {key: torch.stack([torch.as_tensor(feature[key]) for feature in features]) for key in keys}
        if self.keep_provenance:
            for key in ("sample_index", "source_index"):
                batch[key] = torch.tensor([feature[key] for feature in features])
        if self.count_targets:
            batch["num_targets"] = int((batch["labels"][:, 1:] != -100).sum())
        return batch
