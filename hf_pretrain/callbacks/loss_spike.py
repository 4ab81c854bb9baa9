"""`LossSpikeCallback`: sees loss spikes before the update they would make, and logs, skips or stops.

A callback is never given the loss: it is taken by a hook on the model's forward, one value a micro-batch, added up on
the device and read once a step, before the optimizer moves. The value is that of the whole step over all processes, so
all decide alike (bugs S3). Gradients are looked at for values that are not finite; their norm before clipping is
judged too where the trainer hands it over (`observe_grad_norm`), since callbacks see them only clipped. So is the
largest logsumexp of the logits, where the model's loss is a `CausalLMObjective` (with `ZLossCallback`).

A skipped update drops the gradients, so weights, moments and the optimizer's step count stay bit by bit as they were
(bugs S6, L8); the learning rate stays a function of the step and moves on: a skipped step is one of the schedule's, so
the rate never depends on what was skipped, and the last step is at the floor.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from hf_pretrain.callbacks.detector import SpikeDetector, SpikeVerdict
from hf_pretrain.callbacks.log_lines import add_to_line, is_training_line, unwrap
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

# The scaler starts at 2^16 and halves at each overflow, so that more in a row are not the scale's doing.
OVERFLOWS_IN_A_ROW = 20

ACTIONS = ("log", "skip_update", "stop")
_MAX_EVENTS = 1000


class LossSpikeCallback(TrainerCallback, ExportableState):
    """Detects loss spikes in any Trainer and acts on them.

    Logs `spike/count` (spikes so far) and `spike/loss_score` (their share of the steps). `events` holds one dict a
    spike: `step` (the update it would have been), `kind` (`"loss"`, `"grad_norm"` or `"lse_max"`), `value`, `z_score`,
    `mean`, `std`, `action`; numbers that are not finite are given as text (`value`) or `None`. `stopped_at` is the
    step at which it stopped the training, or `None`.

    Args:
        action (`str`, *optional*, defaults to `"log"`): `"log"`; `"skip_update"`: this step changes no weight and no
            moment; `"stop"`: the same, and training stops.
        window (`int`, *optional*, defaults to 128): Accepted steps that the spread is taken over.
        threshold (`float`, *optional*, defaults to 6.0): Standard deviations above the mean that make a spike.
        min_rise (`float`, *optional*, defaults to 0.1): Least rise of the loss, in nats.
        min_values (`int`, *optional*, defaults to 16): Accepted steps needed before a finite loss can be a spike.
        robust (`bool`, *optional*, defaults to `False`): Median and its deviation instead of mean and standard
            deviation.
        max_consecutive (`int`, *optional*, defaults to 20): With `skip_update`, training stops after so many steps in
            a row without an update: nothing is learnt any more.

    Raises:
        UserError: If an option is unknown or can never or always fire.
    """

    actions: tuple[str, ...] = ACTIONS

    def __init__(
        self,
        action: str = "log",
        window: int = 128,
        threshold: float = 6.0,
        min_rise: float = 0.1,
        min_values: int = 16,
        robust: bool = False,
        max_consecutive: int = 20,
    ) -> None:
        if action not in self.actions:
            raise UserError(unknown_name_message("spike action", action, self.actions))
        if isinstance(max_consecutive, bool) or not isinstance(max_consecutive, int) or max_consecutive < 1:
            raise UserError(f"max_consecutive = {max_consecutive!r}; a whole number of at least 1 is needed.")
        self.action = action
        self.window = window
        self.threshold = threshold
        self.min_rise = min_rise
        self.min_values = min_values
        self.robust = robust
        self.max_consecutive = max_consecutive
        options = {"window": window, "threshold": threshold, "min_values": min_values, "robust": robust}
        # 0.4 nats: so that one of 0.5 is seen though the loss still falls
        self.detector = SpikeDetector(min_rise=min_rise, short_min_rise=0.4, **options)
        # a gradient norm has no unit to give a least rise in: it must at least double
        self.grad_norm_detector = SpikeDetector(min_rise=0.0, min_relative_rise=1.0, **options)
        # z-loss keeps it near 0, where a share of it is nothing
        self.lse_detector = SpikeDetector(min_rise=5.0, min_relative_rise=0.5, **options)
        self.events: list[dict[str, Any]] = []
        self.num_spikes = 0
        self.num_steps = 0
        self.skipped_last_step = False
        self.stopped_at: int | None = None
        # Called with the step of a spike while weights and gradients are still those it was seen with.
        self.on_spike: Callable[[int], None] | None = None
        self._overflows = 0
        self._consecutive = 0
        self._model: Any = None
        self._hook: Any = None
        self._sum_losses = True
        self._told_blind = False
        self._forget_step()

    # ---- state ----

    @property
    def progress(self) -> dict[str, Any]:
        """`dict`: Detectors, counts and events, as plain JSON; a resumed Trainer sets it."""
        return {
            "detector": self.detector.state(),
            "grad_norm_detector": self.grad_norm_detector.state(),
            "lse_detector": self.lse_detector.state(),
            "events": self.events,
            "num_spikes": self.num_spikes,
            "num_steps": self.num_steps,
            "consecutive": self._consecutive,
        }

    @progress.setter
    def progress(self, saved: dict[str, Any]) -> None:
        self.detector.load_state(saved["detector"])
        self.grad_norm_detector.load_state(saved["grad_norm_detector"])
        if "lse_detector" in saved:
            self.lse_detector.load_state(saved["lse_detector"])
        self.events = list(saved["events"])
        self.num_spikes = saved["num_spikes"]
        self.num_steps = saved["num_steps"]
        self._consecutive = saved["consecutive"]

    def state(self) -> dict[str, Any]:
        """What a resumed Trainer needs to make this callback again, in the middle of the run.

        Returns:
            `dict`: Constructor arguments and progress.
        """
        names = ("action", "window", "threshold", "min_rise", "min_values", "robust", "max_consecutive")
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {"progress": self.progress},
        }

    # ---- taking the loss ----

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Hooks the model's forward.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If updates cannot be skipped here.
        """
        if self.action != "log" and getattr(args, "deepspeed", None):
            raise UserError(
                f"spike action = {self.action!r}; DeepSpeed keeps the gradients to itself, so no update can be "
                "skipped; use 'log', or FSDP."
            )
        self._release()
        self._model = unwrap(kwargs["model"])
        self._hook = self._model.register_forward_hook(self._take_loss, with_kwargs=True)
        self.stopped_at = None
        self._forget_step()

    def _forget_step(self) -> None:
        self._loss: torch.Tensor | None = None
        self._micro_batches = 0
        self._grad_norm: torch.Tensor | float | None = None
        self._step_lse_max()

    def _step_lse_max(self) -> torch.Tensor | None:
        objective = None if self._model is None else vars(self._model).get("_loss_function")
        return objective.pop_step_lse_max() if isinstance(objective, CausalLMObjective) else None

    def _take_loss(self, module: torch.nn.Module, inputs: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook: adds up the training losses of the step on the device."""
        if not (module.training and torch.is_grad_enabled()):
            return
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if loss is None:
            return
        # with a count of the whole window the losses of its micro-batches add up; without, they are means
        self._sum_losses = kwargs.get("num_items_in_batch") is not None
        value = loss.detach().float().reshape(())
        self._loss = value if self._loss is None else self._loss + value
        self._micro_batches += 1

    def observe_grad_norm(self, norm: torch.Tensor | float) -> None:
        """For trainers: the gradient norm of this step before clipping, equal on all processes.

        Args:
            norm (`torch.Tensor` or `float`): Called after the backward passes, before `on_pre_optimizer_step`.
        """
        self._grad_norm = norm

    # ---- deciding ----

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts a new step.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._forget_step()
        self.skipped_last_step = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judges the step, and drops its gradients if the action says so.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If an update would have to be skipped and the loss cannot be seen.
        """
        gradients = [one.grad for one in kwargs["model"].parameters() if one.grad is not None]
        if not gradients:
            return  # a step without targets: there is nothing to judge and nothing to skip
        loss, norm, lse_max = self._read_step(args, gradients)
        found = []
        if loss is not None:
            found.append(("loss", loss, self.detector.observe(loss)))
        elif not self._told_blind:
            self._told_blind = True
            if self.action != "log":
                raise UserError(
                    f"spike action = {self.action!r}; the model's forward returns no loss in this Trainer, so spikes "
                    "cannot be seen before the update; use action='log'."
                )
            logger.warning("LossSpikeCallback: the forward returns no loss here; only the logged losses are watched.")
        self._overflows = self._overflows + 1 if self._scale_overflowed(args, loss, norm) else 0
        if 0 < self._overflows < OVERFLOWS_IN_A_ROW:
            logger.debug(
                "Update %d: gradients overflow at fp16's loss scale, the scaler skips it.", state.global_step + 1
            )
        elif not math.isfinite(norm):
            found.append(("grad_norm", norm, SpikeVerdict(True, math.inf, math.nan, 0.0)))
        elif self._grad_norm is not None:
            found.append(("grad_norm", norm, self.grad_norm_detector.observe(norm)))
        if lse_max is not None:
            found.append(("lse_max", lse_max, self.lse_detector.observe(lse_max)))
        self.num_steps += 1
        spikes = [one for one in found if one[2].is_spike]
        if not spikes:
            self._consecutive = 0
            return
        action = self._action_for(spikes)
        self._record(state.global_step + 1, spikes, action)
        if self.on_spike is not None:
            self.on_spike(state.global_step + 1)
        self._consecutive += 1
        if self.action == "log":
            return
        kwargs["optimizer"].zero_grad()
        self.skipped_last_step = True
        self._after_skip(state.global_step + 1, control, action)

    @staticmethod
    def _scale_overflowed(args: TrainingArguments, loss: float | None, norm: float) -> bool:
        """Whether gradients are non-finite for fp16's loss scale alone: the scaler skips such a step and halves it."""
        return not math.isfinite(norm) and args.fp16 and (loss is None or math.isfinite(loss))

    def _action_for(self, spikes: list[tuple[str, float, SpikeVerdict]]) -> str:
        """What is done about these spikes of one step."""
        return self.action

    def _after_skip(self, step: int, control: TrainerControl, action: str) -> None:
        """Stops the training where the action says so, or where nothing is learnt any more."""
        if action == "stop" or self._consecutive >= self.max_consecutive:
            why = "action is 'stop'" if action == "stop" else f"{self._consecutive} steps in a row were skipped"
            logger.error("Training stops before update %d: %s.", step, why)
            self.stopped_at = step
            control.should_training_stop = True

    def _read_step(
        self, args: TrainingArguments, gradients: list[torch.Tensor]
    ) -> tuple[float | None, float, float | None]:
        """Loss, gradient norm and largest logsumexp of the step, equal on all processes; one device sync."""
        if self._grad_norm is None:
            norm = torch.nn.utils.get_total_norm(gradients)
        else:
            norm = torch.as_tensor(self._grad_norm)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        device = gradients[0].device
        seen = self._loss is not None
        loss = self._loss.to(device) if seen else torch.zeros((), device=device)
        if seen and not self._sum_losses:
            loss = loss / self._micro_batches
        top = self._step_lse_max()
        told = top is not None
        top = top.float().to(device) if told else torch.zeros((), device=device)
        flags = torch.tensor([float(seen), float(told)], device=device)
        table = torch.cat((torch.stack((loss, norm.float().to(device), top)), flags))[None]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            gathered = [torch.empty_like(table) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(gathered, table)
            table = torch.cat(gathered)
        rows = table.tolist()
        # with a count over all processes their losses are shares of one sum
        means = len(rows) > 1 and not (self._sum_losses and args.average_tokens_across_devices)
        loss_value = sum(row[0] for row in rows) / (len(rows) if means else 1)
        norm_value = sum(row[1] for row in rows) / len(rows)
        tops = [row[2] for row in rows if row[4]]
        lse_value = math.nan if any(map(math.isnan, tops)) else max(tops, default=None)
        return (loss_value if any(row[3] for row in rows) else None), norm_value, lse_value

    def _record(self, step: int, spikes: list[tuple[str, float, SpikeVerdict]], action: str) -> None:
        """Counts the step once and notes what was seen in it."""
        self.num_spikes += 1
        for kind, value, verdict in spikes:
            event = {
                "step": step,
                "kind": kind,
                "value": value if math.isfinite(value) else str(value),
                "z_score": verdict.z_score if math.isfinite(verdict.z_score) else None,
                "mean": verdict.mean if math.isfinite(verdict.mean) else None,
                "std": verdict.std,
                "action": action,
            }
            if len(self.events) < _MAX_EVENTS:
                self.events.append(event)
            logger.warning(
                "Spike at step %d: %s %s (%.1f sigma above %.4g), action: %s.",
                step,
                kind.replace("_", " "),
                f"{value:.4g}",
                verdict.z_score,
                verdict.mean,
                action,
            )

    # ---- log and end ----

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the counts; judges the logged loss where the forward shows none.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._hook is None or not is_training_line(logs):
            return
        if self._told_blind:
            value = float(logs["loss"])
            verdict = self.detector.observe(value)
            if verdict.is_spike:
                self._record(state.global_step, [("loss", value, verdict)], self.action)
        score = self.num_spikes / self.num_steps if self.num_steps else 0.0
        add_to_line(logs, state, {"spike/loss_score": score, "spike/count": self.num_spikes})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Removes the hook; `events` stay.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
