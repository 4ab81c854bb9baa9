"""`FusedKernelsCallback`: Liger's kernels for the length of a training run.

RoPE, RMSNorm and SwiGLU are patched on the model where a self-check shows equal numbers (`kernels.liger_patch`). The
fused cross-entropy comes from our loss: Strata hands it hidden states by itself, other families through Liger's
forward (`kernels.liger_table`), on any device. What was patched and what was not is logged once and kept in `report`;
everything is undone at the end.
"""

import logging
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from hf_pretrain.callbacks.log_lines import unwrap
from hf_pretrain.kernels.liger_patch import PatchReport, patch_with_liger
from hf_pretrain.kernels.liger_table import install_fused_forward, prepare_use_liger_kernel
from hf_pretrain.losses.liger_seam import LigerSeam
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.losses.selection import IMPLEMENTATIONS, resolve_loss_implementation
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

# Models whose forward gives hidden states to a loss that takes them.
_TAKES_HIDDEN_STATES = ("strata",)


class FusedKernelsCallback(TrainerCallback, ExportableState):
    """Patches the model with fused kernels while it trains.

    Args:
        rope (`bool`, *optional*, defaults to `True`): Liger's rotary embedding.
        rms_norm (`bool`, *optional*, defaults to `True`): Liger's RMSNorm.
        swiglu (`bool`, *optional*, defaults to `True`): Liger's SwiGLU.
        fused_ce (`str`, *optional*, defaults to `"auto"`): Cross-entropy without logits: `"auto"`, `"chunked"`,
            `"liger"`, `"reference"`, or `"off"`. When the model already has such a loss (`ZLossCallback`), that one
            gets the hidden states.
        required (`bool`, *optional*, defaults to `False`): Stop before the first step unless all that is asked for
            acts.

    Raises:
        UserError: If `fused_ce` is unknown.
    """

    def __init__(
        self,
        rope: bool = True,
        rms_norm: bool = True,
        swiglu: bool = True,
        fused_ce: str = "auto",
        required: bool = False,
    ) -> None:
        if fused_ce not in ("auto", "off", *IMPLEMENTATIONS):
            raise UserError(unknown_name_message("fused_ce", fused_ce, ["auto", "off", *IMPLEMENTATIONS]))
        self.rope = rope
        self.rms_norm = rms_norm
        self.swiglu = swiglu
        self.fused_ce = fused_ce
        self.required = required
        self.report: PatchReport | None = None
        self._objective: CausalLMObjective | None = None
        self._undo: list[Callable[[], None]] = []

    def state(self) -> dict[str, Any]:
        """What a resumed Trainer needs to make this callback again.

        Returns:
            `dict`: Constructor arguments.
        """
        names = ("rope", "rms_norm", "swiglu", "fused_ce", "required")
        return {"args": {name: getattr(self, name) for name in names}, "attributes": {}}

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes `use_liger_kernel=True` act on Strata: the Trainer patches the model after this and before training.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If Liger is asked for and not installed.
        """
        prepare_use_liger_kernel(args)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Patches the model.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: With `required`, naming what could not be patched.
        """
        self._release()
        model = unwrap(kwargs["model"])
        self.report = patch_with_liger(
            model, rope=self.rope, rms_norm=self.rms_norm, swiglu=self.swiglu, required=self.required
        )
        if self.fused_ce != "off":
            self._install_loss(model)
        logger.info("Fused kernels: %s.", self.report)

    def _install_loss(self, model: Any) -> None:
        """Gives the model a loss on hidden states, and a forward that hands them over."""
        if getattr(model.config, "model_type", None) not in _TAKES_HIDDEN_STATES:
            undo = install_fused_forward(model)
            if isinstance(undo, str):
                if self.required:
                    self._release()
                    raise UserError(f"fused_ce = {self.fused_ce!r} was required, but {undo}; set fused_ce='off'.")
                self.report.skipped["fused_ce"] = undo
                return
            self._undo.append(undo)
        present = getattr(model, "loss_function", None)
        if isinstance(present, CausalLMObjective):
            if self._undo:
                self._undo.append(LigerSeam(model, present).remove)
            self.report.patched["fused_ce"] = "the loss that is installed already"
            return
        function = resolve_loss_implementation(self.fused_ce, model.device)
        self._objective = CausalLMObjective(implementation=self.fused_ce, fused_evaluation=False)
        self._objective.attach(model)
        self.report.patched["fused_ce"] = function.__name__

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Puts everything back; `report` stays.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()

    def _release(self) -> None:
        if self._objective is not None:
            self._objective.detach()
            self._objective = None
        while self._undo:
            self._undo.pop()()
        if self.report is not None:
            self.report.undo()
