"""Which implementation of the loss runs where.

`auto` takes Liger where its kernels run on the hardware (CUDA), and the chunked one elsewhere; it says which and why
once per process. A name that cannot run raises: there is no silent fallback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from hf_pretrain.losses.causal_lm import LossOutput, causal_lm_loss, causal_lm_loss_from_logits
from hf_pretrain.losses.chunked import chunked_causal_lm_loss, chunked_causal_lm_loss_from_logits
from hf_pretrain.losses.liger import liger_causal_lm_loss, why_liger_cannot_run
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

LossFunction = Callable[..., LossOutput]

IMPLEMENTATIONS: dict[str, LossFunction] = {
    "reference": causal_lm_loss,
    "chunked": chunked_causal_lm_loss,
    "liger": liger_causal_lm_loss,
}

_told: set[str] = set()


def resolve_loss_implementation(name: str, device: torch.device | str) -> LossFunction:
    """Picks the loss on hidden states and head weight. All have one signature and one result.

    Args:
        name (`str`): `"auto"`, `"reference"`, `"chunked"` or `"liger"`.
        device (`torch.device` or `str`): Where it is to run.

    Returns:
        `Callable[..., LossOutput]`: See [`~losses.causal_lm.causal_lm_loss`].

    Raises:
        UserError: If the name is unknown or its kernels cannot run on the device.
    """
    if name == "auto":
        reason = why_liger_cannot_run(device)
        on_hardware = torch.device(device).type != "cpu"
        choice = "liger" if reason is None and on_hardware else "chunked"
        why = f"its kernels run on {torch.device(device).type}" if choice == "liger" else reason or "this is a CPU"
        _tell(f"Loss implementation: {choice} ({'' if choice == 'liger' else 'Liger not used: '}{why}).")
        return IMPLEMENTATIONS[choice]
    if name not in IMPLEMENTATIONS:
        raise UserError(unknown_name_message("loss implementation", name, ["auto", *IMPLEMENTATIONS]))
    if name == "liger":
        reason = why_liger_cannot_run(device)
        if reason is not None:
            raise UserError(f"loss implementation = 'liger'; {reason}; use 'auto' or 'chunked'.")
    return IMPLEMENTATIONS[name]


def resolve_logits_implementation(name: str) -> LossFunction:
    """Picks the loss on logits, for models that build them.

    Args:
        name (`str`): As above; `"auto"`, `"chunked"` and `"liger"` all mean the chunked one, which runs on any device.

    Returns:
        `Callable[..., LossOutput]`: See [`~losses.causal_lm.causal_lm_loss_from_logits`].
    """
    return causal_lm_loss_from_logits if name == "reference" else chunked_causal_lm_loss_from_logits


def _tell(message: str) -> None:
    """Logs a message once per process."""
    if message not in _told:
        _told.add(message)
        logger.info(message)
