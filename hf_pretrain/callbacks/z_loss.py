"""`ZLossCallback`: z-loss for any causal LM in any Trainer.

The z term (PaLM, arXiv 2204.02311: 1e-4 times the squared logsumexp, a mean over the tokens of the loss) keeps logits
from drifting. It is added where the model computes its loss, so it is exact under accumulation and several processes;
evaluation stays the plain cross-entropy. Liger's forwards (`use_liger_kernel=True`) and the head of TRL's `SFTTrainer`
compute the loss elsewhere and are reached by seams of their own. Anything else that goes round the model's loss is
refused, by name where it can be known beforehand and before the first update in any other case.
"""

import inspect
import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer_callback import ExportableState

from hf_pretrain.callbacks.log_lines import add_to_line, is_training_line, unwrap
from hf_pretrain.kernels.liger_table import prepare_use_liger_kernel
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.losses.selection import resolve_loss_implementation
from hf_pretrain.losses.trl_seam import TrlHeadSeam
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)


class ZLossCallback(TrainerCallback, ExportableState):
    """Adds z-loss to the training loss and logs `ce_loss`, `z_loss`, `lse_mean` and `lse_max`.

    Args:
        coef (`float`, *optional*, defaults to 1e-4): Coefficient, in [0, 1]; 0 only logs.
        implementation (`str`, *optional*, defaults to `"auto"`): `"auto"`, `"reference"`, `"chunked"` or `"liger"`.
        label_smoothing (`float`, *optional*, defaults to 0.0): Replaces the Trainer's `label_smoothing_factor`, which
            would compute the loss outside the model.
        fused_evaluation (`bool`, *optional*, defaults to `False`): No logits in evaluation either, on models that can
            do without (Strata). Needs `prediction_loss_only=True`, because `compute_metrics` and `predict()` would
            get no logits. Not needed in `PretrainTrainer`, nor with `use_liger_kernel`: they ask for no logits batch
            by batch where only the loss is wanted.

    Raises:
        UserError: If an option is out of range.

    Example:

    ```python
    >>> trainer = Trainer(model, args, train_dataset=dataset, callbacks=[ZLossCallback(coef=1e-4)])
    >>> trainer.train()
    ```
    """

    def __init__(
        self,
        coef: float = 1e-4,
        implementation: str = "auto",
        label_smoothing: float = 0.0,
        fused_evaluation: bool = False,
    ) -> None:
        self.coef = coef
        self.implementation = implementation
        self.label_smoothing = label_smoothing
        self.fused_evaluation = fused_evaluation
        self.objective: CausalLMObjective | None = None
        self._trl_seam: TrlHeadSeam | None = None
        self._told_of_lse_max = False
        self.num_empty_steps = 0
        self._make_objective()  # refuse bad values here, not hours later

    def _make_objective(self) -> CausalLMObjective:
        return CausalLMObjective(self.coef, self.implementation, self.label_smoothing, self.fused_evaluation)

    def state(self) -> dict[str, Any]:
        """What a resumed Trainer needs to make this callback again.

        Returns:
            `dict`: Constructor arguments.
        """
        return {
            "args": {
                "coef": self.coef,
                "implementation": self.implementation,
                "label_smoothing": self.label_smoothing,
                "fused_evaluation": self.fused_evaluation,
            },
            "attributes": {"num_empty_steps": self.num_empty_steps},
        }

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
            UserError: If Liger is asked for and not installed, or evaluation would lack logits it may need.
        """
        prepare_use_liger_kernel(args)
        _refuse_lost_count(args, unwrap(kwargs["model"]))
        if self.fused_evaluation and not getattr(args, "prediction_loss_only", False):
            raise UserError(
                "fused_evaluation = True; evaluation then gives no logits, which compute_metrics and predict() need; "
                "set prediction_loss_only=True in the arguments, or leave fused_evaluation out of ZLossCallback."
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Installs the loss on the model.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If the loss could not act here, with the reason.
        """
        self._release()
        model = unwrap(kwargs["model"])
        _refuse_bypass(args, model)
        _refuse_second_z(args)
        _refuse_lost_count(args, model)
        if self.implementation != "auto":
            resolve_loss_implementation(self.implementation, model.device)
        objective = self._make_objective()
        if _is_sft(args):
            _refuse_sft_options(args, self.label_smoothing)
            self._trl_seam = TrlHeadSeam(model, objective)
        else:
            objective.attach(model)
        self.objective = objective

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes sure, before the first update, that the model really called the loss; skips updates without a target.

        Where the whole accumulation window has no target over all ranks, there are no gradients but zeros, and an
        optimizer with momentum or weight decay would still move the weights (bugs L8): they are dropped, which leaves
        weights and moments bit by bit as they were, and `num_empty_steps` counts. The learning rate stays a function
        of the step.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If forward and backward have run without it.
        """
        objective = self.objective
        if objective is None:
            return
        if objective.training_calls:
            # A count of one rank's own targets is no ground to decide on: the others would go on.
            together = args.world_size == 1 or args.average_tokens_across_devices
            if objective.pop_window_is_empty() and together:
                self.num_empty_steps += 1
                step = state.global_step + 1
                logger.warning("Step %d has no label (%d such steps so far): no update.", step, self.num_empty_steps)
                kwargs["optimizer"].zero_grad()
            return
        if any(one.grad is not None for one in kwargs["model"].parameters()):
            raise UserError(
                "ZLossCallback: a training step ran and the model's loss_function was not called; something computes "
                "the loss outside the model (compute_loss_func, a patched forward, another trainer); remove that or "
                "the callback."
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the parts of the loss, means over the tokens since the last training line.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self.objective is None or not is_training_line(logs):
            return
        metrics = self.objective.pop_metrics()
        if metrics and "lse_max" not in metrics and not self._told_of_lse_max:
            self._told_of_lse_max = True
            logger.info("lse_max is not logged: Liger's kernel does not tell the logsumexp of single tokens.")
        add_to_line(logs, state, metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Puts the model's own loss back.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()

    def _release(self) -> None:
        """Detaches an objective that is still on a model (also after a run that ended by an error)."""
        if self._trl_seam is not None:
            self._trl_seam.remove()
            self._trl_seam = None
        if self.objective is not None:
            self.objective.detach()
            self.objective = None


def _is_sft(args: TrainingArguments) -> bool:
    return any(kind.__name__ == "SFTConfig" for kind in type(args).__mro__)


def _refuse_sft_options(args: TrainingArguments, label_smoothing: float) -> None:
    """Raises where SFTTrainer's loss is not the sum of log-probabilities that the seam adds to."""
    if getattr(args, "loss_type", "nll") not in ("nll", "chunked_nll"):
        raise UserError(
            f"loss_type = {args.loss_type!r}; ZLossCallback acts in SFTTrainer with loss_type='nll' only; set that or "
            "leave the callback out."
        )
    if label_smoothing:
        raise UserError(
            f"label_smoothing = {label_smoothing}; SFTTrainer's fused head has none; leave it out of ZLossCallback."
        )


def _refuse_lost_count(args: TrainingArguments, model: Any) -> None:
    """Raises where the Trainer would not tell the model the number of targets, and more than one call shares it."""
    accepts = getattr(model, "accepts_loss_kwargs", None)  # the Trainer asks in this order
    if accepts is None and hasattr(model, "forward"):
        kinds = [one.kind for one in inspect.signature(model.forward).parameters.values()]
        accepts = inspect.Parameter.VAR_KEYWORD in kinds
    if not accepts and (args.gradient_accumulation_steps > 1 or args.world_size > 1):
        raise UserError(
            f"{type(model).__name__}.forward takes no **kwargs, so the Trainer cannot hand it num_items_in_batch, and "
            "with accumulation or several processes the loss would be a mean of means; add **kwargs and pass them on "
            "to the loss, or use one micro-batch on one process."
        )


def _refuse_second_z(args: TrainingArguments) -> None:
    """Raises where Liger's options ask for what this callback replaces."""
    options = (getattr(args, "liger_kernel_config", None) or {}) if getattr(args, "use_liger_kernel", False) else {}
    for name, own in (("lse_square_scale", "coef"), ("label_smoothing", "label_smoothing")):
        if options.get(name):
            raise UserError(
                f"liger_kernel_config[{name!r}] = {options[name]}; ZLossCallback takes the place of that loss; give "
                f"ZLossCallback({own}={options[name]}) instead, or leave the callback out."
            )


def _refuse_bypass(args: TrainingArguments, model: Any) -> None:
    """Raises where it is known beforehand that the model's own loss will not be asked; warns of a wrong count."""
    if getattr(args, "label_smoothing_factor", 0.0):
        raise UserError(
            f"label_smoothing_factor = {args.label_smoothing_factor}; with it the Trainer computes the loss outside "
            "the model; set it to 0 and give ZLossCallback(label_smoothing=...)."
        )
    loss_type = getattr(model, "loss_type", None)
    if hasattr(type(model), "loss_function") and LOSS_MAPPING.get(loss_type) is not ForCausalLMLoss:
        logger.warning(
            "%s has loss_type = %r, so transformers' Trainer counts its targets unshifted and its losses come out too "
            "small (with or without z-loss); set model.loss_type = 'ForCausalLM' before making the Trainer.",
            type(model).__name__,
            loss_type,
        )
