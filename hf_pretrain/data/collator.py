"""Batches of packed windows, without an attention mask.

transformers keeps packed documents apart by `position_ids` that restart, but only where no attention mask is given: an
all-ones mask lets later documents see earlier ones and nothing warns. So a mask is never made here, and
[`~hf_pretrain.data.packed_guard.keep_documents_apart`] sees to a model that is given one all the same.
"""

from collections.abc import Sequence
from typing import Any

import torch

from hf_pretrain.data.packing import PackedSamples
from hf_pretrain.utils.errors import UserError


class PretrainDataCollator:
    """Stacks samples of [`~hf_pretrain.data.mixture.MixtureDataset`] to a batch.

    Args:
        keep_provenance (`bool`, *optional*, defaults to `False`): Whether `sample_index` and `source_index` go along.
            Models do not take them; set this to look at batches.
        count_targets (`bool`, *optional*, defaults to `False`): Whether `num_targets` goes along, the number of labels
            that count as an `int`. `PretrainTrainer` takes it out again.
        attn_implementation (`str`, *optional*): The model's attention. Flash attention finds documents by positions
            only in a batch of one row, so for it all rows become one, with the bounds of the documents.
    """

    def __init__(
        self, keep_provenance: bool = False, count_targets: bool = False, attn_implementation: str | None = None
    ) -> None:
        self.attn_implementation = attn_implementation
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
        if isinstance(features, PackedSamples):
            batch = {key: getattr(features, key) for key in keys}
            return self._finished(batch, features.sample_index, features.source_index)
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
        numbers = [
            [feature[key] for feature in features] if self.keep_provenance else []
            for key in ("sample_index", "source_index")
        ]
        return self._finished(batch, *numbers)

    def _finished(self, batch: dict[str, Any], samples: list[int], sources: list[int]) -> dict[str, Any]:
        if self.keep_provenance:
            batch["sample_index"], batch["source_index"] = torch.tensor(samples), torch.tensor(sources)
        if self.count_targets:
            batch["num_targets"] = int((batch["labels"][:, 1:] != -100).sum())
        return batch if not (self.attn_implementation or "").startswith("flash") else self._in_one_row(batch)

    @staticmethod
    def _in_one_row(batch: dict[str, Any]) -> dict[str, Any]:
        """Joins the rows, and says where each document begins and ends, as flash attention takes it."""
        labels = batch["labels"].clone()
        labels[:, 0] = -100  # the label before it in the long row belongs to another sample
        batch = {**batch, "labels": labels}
        for key in ("input_ids", "labels", "position_ids"):
            batch[key] = batch[key].reshape(1, -1)
        positions = batch["position_ids"][0]
        starts = torch.cat([positions.new_zeros(1), 1 + (positions[1:] != positions[:-1] + 1).nonzero()[:, 0]])
        bounds = torch.cat([starts, starts.new_tensor([len(positions)])]).to(torch.int32)
        longest = int(bounds.diff().max())
        return {
            **batch,
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }
