"""Held-out loss as a mean over tokens.

A mean of batch means depends on how rows fall into batches; sums of losses, tokens and bytes do not.
"""

import math
from typing import Any

import torch


class HeldOutTotals:
    """Sums over held-out batches.

    Args:
        device (`torch.device`): Where the sums are kept.
        byte_lengths (`torch.Tensor`, *optional*): Bytes of text behind each token id, int64 of shape `[vocab_size]`.
        **forward_options: What the model's forward gets with every batch.
    """

    def __init__(self, device: torch.device, byte_lengths: torch.Tensor | None = None, **forward_options: Any) -> None:
        self.byte_lengths = byte_lengths
        self.forward_options = forward_options
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss in nats, tokens, bytes

    @torch.no_grad()
    def add(self, model: Any, batch: dict[str, torch.Tensor], accepts_loss_kwargs: bool) -> None:
        """Scores one batch.

        Args:
            model (`Module`): The model, in evaluation mode.
            batch (`dict[str, torch.Tensor]`): Inputs with unshifted `labels`.
            accepts_loss_kwargs (`bool`): Whether the model divides by a given `num_items_in_batch`; else by its own
                count.
        """
        batch = {**batch, **self.forward_options}
        targets = batch["labels"][..., 1:]
        scored = targets[targets != -100]
        if accepts_loss_kwargs:
            one = torch.ones((), dtype=torch.long, device=self.sums.device)
            loss = model(**batch, num_items_in_batch=one).loss
        else:
            loss = model(**batch).loss * len(scored)
        # A batch without targets still makes its forward pass, which sharded models make together; its loss may be 0 /
        # 0.
        if len(scored):
            self.sums[0] += loss.double()
            self.sums[1] += len(scored)
            if self.byte_lengths is not None:
                self.sums[2] += self.byte_lengths[scored].sum()

    def metrics(self, prefix: str, world_size: int) -> dict[str, float]:
        """Reads the results, summed over processes.

        Args:
            prefix (`str`): First part of the names, e.g. `"eval"` or `"eval_web"`.
            world_size (`int`): Number of processes.

        Returns:
            `dict[str, float]`: `<prefix>_tokens`, `<prefix>_loss` in nats per token, and with byte lengths
            `eval_bits_per_byte/<source>`.
        """
        if world_size > 1:
            torch.distributed.all_reduce(self.sums)
        loss, tokens, num_bytes = self.sums.tolist()
        metrics: dict[str, float] = {f"{prefix}_tokens": int(tokens)}
        if tokens:
            metrics[f"{prefix}_loss"] = loss / tokens
        if num_bytes:
            source = prefix.removeprefix("eval").lstrip("_")
            metrics[f"eval_bits_per_byte/{source}".rstrip("/")] = loss / math.log(2) / num_bytes
        return metrics
