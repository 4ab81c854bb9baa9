"""`AnnealingMixCallback`: better data while the learning rate decays.

The last tenth or fifth of a run, in which the learning rate falls to its floor, is worth the best sources (OLMo 2,
https://huggingface.co/papers/2501.00656; MiniCPM, https://huggingface.co/papers/2404.06395). The callback finds the
step at which the decay begins in the learning-rate schedule itself and starts the new phase of the mixture at exactly
that step's first sample, so the two cannot drift apart. The mixture is a function of the sample index, so this works
with any number of data loader workers, and a resumed run sees the same phase.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.data_ledger import DataLedgerCallback, find_mixture
from hf_pretrain.data.order_guard import order_warnings
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)


def decay_start_step(lr_scheduler: Any, max_steps: int) -> int:
    """Finds where the learning rate leaves its peak for good.

    Args:
        lr_scheduler (`LambdaLR`): The schedule, as a factor of the peak for each update.
        max_steps (`int`): Number of updates.

    Returns:
        `int`: Updates made before the first one below the peak; 0 if the peak is never reached.

    Raises:
        UserError: If the schedule cannot be asked, or never leaves its peak.
    """
    scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)
    if not isinstance(scheduler, LambdaLR):
        raise UserError(
            "AnnealingMixCallback: start = 'decay' cannot be found in a "
            f"{type(scheduler).__name__}; give the step as a number"
        )
    return _last_peak(scheduler.lr_lambdas[0], max_steps)


def _last_peak(factor: Callable[[int], float], max_steps: int) -> int:
    # From the end: a decay is the shorter part of most runs.
    # Back from the end as long as the rate falls: the peak, or the plateau that a decay leaves.
    start = max_steps
    while start > 1 and factor(start - 1) < factor(start - 2):
        start -= 1
    if start == 1 and factor(0) < 1 - 1e-9:
        start = 0  # no warm-up: the first update is already below the peak
    if start >= max_steps:
        raise UserError(
            "AnnealingMixCallback: start = 'decay', but the learning rate never decays within "
            f"max_steps = {max_steps}; use a "
            "schedule with a decay (WSD, cosine, linear) or give the step as a number"
        )
    return start


def anneal_start_step(factor: Callable[[int], float], max_steps: int, fraction: float | None = None) -> int:
    """Finds the step after which an anneal begins, without a trainer.

    Args:
        factor (`Callable[[int], float]`): Updates made to the factor on the peak rate of the next one.
        max_steps (`int`): Number of updates.
        fraction (`float`, *optional*): Share of the run at its end that anneals; by default the decay of the rate.

    Returns:
        `int`: Updates made before it.

    Raises:
        UserError: If the rate never leaves its peak.
    """
    return _last_peak(factor, max_steps) if fraction is None else round((1.0 - fraction) * max_steps)


class AnnealingMixCallback(DataLedgerCallback):
    """Moves the mixture to other weights from one step to the end of the run.

    Args:
        weights (`Mapping[str, float]`): Token share of each source in the anneal.
        start (`"decay"`, `int` or `float`, *optional*, defaults to `"decay"`): When it begins: with the decay of the
            learning rate, after so many optimizer steps (`int`), or at a fraction of the run (`float` below 1).
        ramp_fraction (`float`, *optional*, defaults to 0.0): Share of the anneal over which the weights move linearly.
        name (`str`, *optional*, defaults to `"anneal"`): What the logs call the phase.

    Raises:
        UserError: If `start` is none of these.

    Example:

    ```python
    >>> trainer = Trainer(model, args, train_dataset=mixture, data_collator=PretrainDataCollator(),
    ...                   callbacks=[AnnealingMixCallback({"books": 0.6, "encyclopedic": 0.4})])
    ```
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        start: str | int | float = "decay",
        ramp_fraction: float = 0.0,
        name: str = "anneal",
    ) -> None:
        super().__init__()
        is_number = isinstance(start, (int, float)) and not isinstance(start, bool)
        if start != "decay" and not (is_number and (start >= 0 if isinstance(start, int) else 0 <= start < 1)):
            raise UserError(
                f"AnnealingMixCallback: start = {start!r}; allowed are 'decay', a number of "
                "steps, or a fraction from 0 to 1"
            )
        self.weights = dict(weights)
        self.start = start
        self.ramp_fraction = ramp_fraction
        self.name = name
        self.start_step: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the phase in the mixture, before any sample is read.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        super().on_train_begin(args, state, control, **kwargs)
        dataset = find_mixture(kwargs["train_dataloader"], type(self).__name__)
        if self.start == "decay":
            step = decay_start_step(kwargs["lr_scheduler"], state.max_steps)
        elif isinstance(self.start, int):
            step = self.start
        else:
            step = round(self.start * state.max_steps)
        self.start_step = step
        # The sample that the first step of the decay begins with, whatever was left out before it.
        first = dataset.skips.sample_at(self.samples_after(step, args))
        schedule = dataset.requested_schedule
        reach = max(schedule.num_samples, len(dataset) + dataset.skips.total)
        dataset.set_schedule(schedule.with_phase(self.name, first, self.weights, self.ramp_fraction, reach))
        if state.is_world_process_zero:
            for warning in order_warnings(dataset.schedule):
                logger.warning(
                    "Aggressive order: %s, and may be forgotten. Keep part of it, or compare with the same tokens in "
                    "no order: hf-pretrain pretrain --config FILE --control uniform",
                    warning,
                )
