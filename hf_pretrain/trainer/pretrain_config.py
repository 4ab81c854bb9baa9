"""`PretrainConfig`: transformers' `TrainingArguments` with a token budget, pretraining defaults and checks.

Budgets are in tokens, batches in sequences over all processes: the same file gives the same run on one process and on
many. Every field is checked for type and range when the object is made, because YAML takes `true` for a number.
"""

import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hf_pretrain.optim.schedules import check_schedule
from hf_pretrain.trainer.launch_layout import check_layout
from hf_pretrain.trainer.optimizing import OWN_OPTIMIZERS, own_optimizer_options
from hf_pretrain.utils.duration import parse_duration
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.strict import convert


@dataclass
class PretrainConfig(TrainingArguments):
    """Arguments of [`~hf_pretrain.trainer.pretrain_trainer.PretrainTrainer`].

    > Budget and batch

    Args:
        train_tokens (`int`, *optional*):
            Tokens to train on; rounded up to whole optimizer steps. Give this or `max_steps`.
        seq_length (`int`, *optional*, defaults to 1024):
            Tokens of a sequence.
        global_batch_size (`int`, *optional*):
            Sequences of one optimizer step over all processes. `gradient_accumulation_steps` follows from it,
            `per_device_train_batch_size` and the number of processes. Without it those three decide.
        max_epochs (`float` or `dict[str, float]`, *optional*, defaults to 4.0):
            How often a source may be read, earlier stages included.
        on_excess (`str`, *optional*, defaults to `"refuse"`):
            What to do with a mixture that reads a source more often: `"refuse"` or `"redistribute"`.

    > Learning rate

    Args:
        schedule (`str`, *optional*, defaults to `"wsd"`):
            `"wsd"` (warm-up, stable, decay), or after the same warm-up `"cosine"`, `"linear"`, `"constant"`, `"d2z"`
            (straight to zero) or `"infinite"`: in `lr_scheduler_kwargs`, `cooldown_steps` updates from the peak to
            `constant_ratio` of it (0.5), constant, and a decay that can be put off as long as it has not begun.
        warmup_fraction (`float`, *optional*):
            Share of the steps that warm up; 0.01 if `warmup_steps` is not given either.
        decay_fraction (`float`, *optional*, defaults to 0.1):
            Share of the steps that decay, for `"wsd"` and `"infinite"`. 1.0 decays from the first step, 0.0 never.
        decay_shape (`str`, *optional*, defaults to `"linear"`):
            `"linear"`, `"1-sqrt"`, `"cosine"` or `"exp"`, for `"wsd"` and `"infinite"`.
        min_lr_ratio (`float`, *optional*, defaults to 0.0):
            Learning rate of the last step as a share of the peak.
        clipping (`str`, *optional*, defaults to `"norm"`):
            What `max_grad_norm` bounds: `"norm"`, the norm of all gradients; `"zclip"`, the same, and below it a norm
            unusual for the run; `"adagc"`, each parameter's norm by its own past, and all of them in the warm-up of
            100 steps. The logged norm is the one before.

    > Loss

    Args:
        z_loss_coef (`float`, *optional*, defaults to 1e-4):
            Weight of the squared log-partition function in the loss; 0.0 turns it off.
        loss_implementation (`str`, *optional*, defaults to `"auto"`):
            `"auto"`, `"reference"`, `"chunked"` or `"liger"`.
        empty_step_limit (`int`, *optional*, defaults to 10):
            Optimizer steps in a row without a single label before training stops with an error. Each such step changes
            nothing.

    > Watching

    Args:
        spike_action (`str`, *optional*, defaults to `"log"`):
            What happens at a spike of the loss, the gradient norm or the largest logsumexp: `"off"`, `"log"`,
            `"skip_update"` (weights, moments and the optimizer's step stay, the learning rate moves on), `"stop"`, or
            `"rewind"` (back to a checkpoint before it, and on with other data; where the gradient norm alone spikes,
            the update is skipped).
        spike_threshold (`float`, *optional*, defaults to 6.0):
            Standard deviations above the mean of accepted losses that make a spike.
        spike_window (`int`, *optional*, defaults to 128):
            Accepted steps that mean and deviation are taken over.
        rewind_skip_batches (`int`, *optional*):
            Batches left out after a rewind, from the checkpoint on and at least through the spike; by default 200, or
            a fiftieth of the run where that is less. The same spike again doubles it.
        rewind_lr_factor (`float`, *optional*, defaults to 1.0):
            Factor on the learning rate after a rewind, for the rest of the run.
        max_rewinds (`int`, *optional*, defaults to 10):
            Rewinds of a run after which it stops with its last good checkpoint.
        router_health (`bool`, *optional*, defaults to `True`):
            Whether router load, entropy and dead experts are logged, for models that have routers.
        throughput (`bool`, *optional*, defaults to `True`):
            Whether tokens per second and MFU are logged.
        fused_kernels (`bool`, *optional*, defaults to `False`):
            Whether Liger kernels replace RMSNorm, RoPE and SwiGLU where they can run.
        max_eval_windows (`int`, *optional*, defaults to 64):
            Sequences of each held-out source that an evaluation reads at most.

    > Anneal

    Args:
        anneal_fraction (`float`, *optional*):
            Share of the run at its end that reads the anneal mixture. Without it the anneal begins with the decay of
            the learning rate.
        anneal_ramp_fraction (`float`, *optional*, defaults to 0.0):
            Share of the anneal over which the mixture moves linearly.

    > Start and records

    Args:
        continue_optimizer (`bool`, *optional*, defaults to `False`):
            Whether a stage takes over the Adam moments of the stage it starts from.
        extend_context (`dict`, *optional*):
            Options of `extend_context` for the model a stage starts from, e.g. `{rope_type: yarn, factor: 4}`.
        resume_changes (`list[str]`, *optional*, defaults to `[]`):
            Names of settings that may differ from those of the checkpoint a run goes on from, e.g. `[learning_rate]`,
            or `[mixture]` for other weights from there on. Any other difference is an error, but for the length of a
            `"wsd"` run that has not begun its decay.
        rewarm_steps (`int`, *optional*):
            Updates over which the learning rate climbs back to its schedule, where a `"wsd"` run is made longer from
            inside its decay.
        record_dir (`str`, *optional*):
            Folder of `log.jsonl` and `data_order.json`; by default `output_dir`.
        obey_signals (`bool`, *optional*, defaults to `True`):
            Whether SIGTERM, SIGUSR1 and SIGINT save a checkpoint and stop.
        max_runtime (`str`, *optional*):
            Time after which a checkpoint is saved and training stops as at SIGTERM, such as `3h50m`, counted from the
            start of `train()`. Give the job's limit less the time of a few steps and a save.

    The optimizer is `optim`: one of transformers', or this package's `"muon"` (options `momentum` and `ns_steps` in
    `optim_args`) and `"stable_adamw"`.

    Defaults of `TrainingArguments` that differ here: AdamW betas (0.9, 0.95) and weight decay 0.1, learning rate 1e-3,
    sequential sampling (the order is in the dataset), no hiding of non-finite losses, callback states restored on
    resume.

    Raises:
        UserError: If a field has the wrong type or is out of range, or fields contradict each other.
    """

    train_tokens: int | None = field(default=None, metadata={"help": "Tokens to train on."})
    seq_length: int = field(default=1024, metadata={"help": "Tokens of a sequence."})
    global_batch_size: int | None = field(default=None, metadata={"help": "Sequences of one optimizer step."})
    max_epochs: float | dict[str, float] = field(default=4.0, metadata={"help": "How often a source may be read."})
    on_excess: Literal["refuse", "redistribute"] = field(default="refuse", metadata={"help": "Over max_epochs."})
    schedule: Literal["wsd", "cosine", "linear", "constant", "d2z", "infinite"] = field(
        default="wsd", metadata={"help": "LR schedule."}
    )
    warmup_fraction: float | None = field(default=None, metadata={"help": "Share of the steps that warm up."})
    decay_fraction: float = field(default=0.1, metadata={"help": "Share of the steps that decay (wsd)."})
    decay_shape: Literal["linear", "1-sqrt", "cosine", "exp"] = field(
        default="linear", metadata={"help": "Shape of the decay (wsd)."}
    )
    min_lr_ratio: float = field(default=0.0, metadata={"help": "Last learning rate as a share of the peak."})
    clipping: Literal["norm", "zclip", "adagc"] = field(
        default="norm", metadata={"help": "How gradients are clipped."}
    )
    z_loss_coef: float = field(default=1e-4, metadata={"help": "Weight of the z-loss; 0 turns it off."})
    loss_implementation: Literal["auto", "reference", "chunked", "liger"] = field(
        default="auto", metadata={"help": "Which loss kernel."}
    )
    empty_step_limit: int = field(default=10, metadata={"help": "Steps in a row without labels before an error."})
    spike_action: Literal["off", "log", "skip_update", "stop", "rewind"] = field(
        default="log", metadata={"help": "What happens at a loss spike."}
    )
    spike_threshold: float = field(default=6.0, metadata={"help": "Standard deviations that make a spike."})
    spike_window: int = field(default=128, metadata={"help": "Accepted steps the deviation is taken over."})
    rewind_skip_batches: int | None = field(default=None, metadata={"help": "Batches a rewind leaves out."})
    rewind_lr_factor: float = field(default=1.0, metadata={"help": "Factor on the rate after a rewind."})
    max_rewinds: int = field(default=10, metadata={"help": "Rewinds before the run stops."})
    router_health: bool = field(default=True, metadata={"help": "Log router load and entropy."})
    throughput: bool = field(default=True, metadata={"help": "Log tokens per second and MFU."})
    fused_kernels: bool = field(default=False, metadata={"help": "Liger kernels where they can run."})
    max_eval_windows: int = field(default=64, metadata={"help": "Held-out sequences a source."})
    anneal_fraction: float | None = field(default=None, metadata={"help": "Share of the run that anneals."})
    anneal_ramp_fraction: float = field(default=0.0, metadata={"help": "Share of the anneal that ramps."})
    continue_optimizer: bool = field(default=False, metadata={"help": "Take over the previous stage's moments."})
    extend_context: dict[str, Any] | None = field(default=None, metadata={"help": "Options of extend_context."})
    resume_changes: list[str] = field(default_factory=list, metadata={"help": "Settings that may differ on resume."})
    rewarm_steps: int | None = field(default=None, metadata={"help": "Second warm-up of a run made longer."})
    record_dir: str | None = field(default=None, metadata={"help": "Folder of log.jsonl and data_order.json."})
    obey_signals: bool = field(default=True, metadata={"help": "SIGTERM, SIGUSR1 and SIGINT save and stop."})
    max_runtime: str | None = field(default=None, metadata={"help": "Time after which training saves and stops."})

    # What TrainingArguments has, with the values pretraining wants.
    learning_rate: float = field(default=1e-3, metadata={"help": "Peak learning rate."})
    weight_decay: float = field(default=0.1, metadata={"help": "Weight decay of matrices."})
    adam_beta2: float = field(default=0.95, metadata={"help": "Beta2 of AdamW."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between log lines."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide non-finite losses."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Drop columns the model does not take."})
    ignore_data_skip: bool = field(default=True, metadata={"help": "The sampler starts at the right sample."})
    train_sampling_strategy: str = field(default="sequential", metadata={"help": "The order is in the dataset."})
    restore_callback_states_from_checkpoint: bool = field(default=True, metadata={"help": "Resume callbacks."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "Our progress line is used instead."})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "Tracking integrations."})

    def __post_init__(self) -> None:
        self._check_types()
        if not torch.accelerator.is_available():
            # Left to itself, the stack starts the process group on a CPU and then trains every process on its own.
            self.use_cpu = True
        check_layout(os.environ)
        chosen = self.optim
        if chosen in OWN_OPTIMIZERS:
            # transformers takes only names of its own list.
            own_optimizer_options(chosen, self.optim_args)
            self.optim = "adamw_torch"
        super().__post_init__()
        self.optim = str(chosen) if chosen in OWN_OPTIMIZERS else self.optim
        self._check_launch()
        self._check_ranges()
        self._settle_batch()
        self._settle_steps()
        if self.max_steps > 0:
            try:
                check_schedule(**self.schedule_options(self.max_steps))
            except UserError as error:
                hint = "warmup_steps or warmup_fraction, and decay_fraction, give these"
                raise UserError(f"schedule = {self.schedule}: {error} ({hint})") from error

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one optimizer step over all processes."""
        return self.train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all processes."""
        return self.sequences_per_step * self.seq_length

    def warmup_updates(self, max_steps: int) -> int:
        """Counts the updates that warm up.

        Args:
            max_steps (`int`): Updates of the run.

        Returns:
            `int`: From `warmup_steps` (a number of steps, or a share below 1) or `warmup_fraction`.
        """
        if self.warmup_steps:
            return int(self.warmup_steps) if self.warmup_steps >= 1 else math.ceil(self.warmup_steps * max_steps)
        fraction = 0.01 if self.warmup_fraction is None else self.warmup_fraction
        return math.ceil(fraction * max_steps)

    def schedule_options(self, max_steps: int) -> dict[str, Any]:
        """Puts the learning-rate fields into the terms of `hf_pretrain.optim.schedules`.

        Args:
            max_steps (`int`): Updates of the run.

        Returns:
            `dict`: Arguments of `lr_lambda` and `check_schedule`.
        """
        return {
            "name": self.schedule,
            "num_training_steps": max_steps,
            "num_warmup_steps": self.warmup_updates(max_steps),
            "num_decay_steps": self.decay_updates(max_steps),
            "min_lr_ratio": self.min_lr_ratio,
            "decay_type": self.decay_shape,
            **self._infinite_options(),
        }

    def decay_updates(self, max_steps: int) -> int | None:
        """Counts the updates of the final decay.

        Args:
            max_steps (`int`): Updates of the run.

        Returns:
            `int`: From `decay_fraction`; `None` for a schedule without such a phase.
        """
        return round(self.decay_fraction * max_steps) if self.schedule in ("wsd", "infinite") else None

    def _infinite_options(self) -> dict[str, Any]:
        given = self.lr_scheduler_kwargs or {}
        if self.schedule != "infinite":
            if given:
                raise UserError(f"lr_scheduler_kwargs = {given}; only schedule: infinite takes some: leave them out")
            return {}
        for name in given:
            if name not in ("cooldown_steps", "constant_ratio"):
                known = ("cooldown_steps", "constant_ratio")
                raise UserError(f"lr_scheduler_kwargs: {unknown_name_message('key', name, known)}")
        return {
            "num_cooldown_steps": given.get("cooldown_steps"),
            "constant_ratio": given.get("constant_ratio", 0.5),
        }

    def _check_types(self) -> None:
        hints = get_type_hints(PretrainConfig)
        for name in PretrainConfig.__annotations__:
            # The Trainer turns some values into its own types before a copy is made, and takes those back.
            if name != "report_to":
                setattr(self, name, convert(hints[name], getattr(self, name), name))

    def _check_launch(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if launched != self.world_size:
            raise UserError(
                f"WORLD_SIZE = {launched}, but training would use {self.world_size} process(es); launch with torchrun "
                "or accelerate, and give use_cpu only where there is no accelerator"
            )

    def _check_ranges(self) -> None:
        def need(name: str, fits: bool, allowed: str) -> None:
            if not fits:
                raise UserError(f"{name} = {getattr(self, name)!r}; {allowed}")

        for name in (
            "train_tokens",
            "global_batch_size",
            "empty_step_limit",
            "max_eval_windows",
            "rewarm_steps",
            "rewind_skip_batches",
            "max_rewinds",
        ):
            value = getattr(self, name)
            need(name, value is None or value >= 1, "allowed are whole numbers from 1 up")
        need("seq_length", self.seq_length >= 2, "allowed are whole numbers from 2 up")
        for name in ("warmup_fraction", "decay_fraction", "min_lr_ratio", "anneal_ramp_fraction"):
            value = getattr(self, name)
            need(name, value is None or 0 <= value <= 1, "allowed is 0 to 1")
        need("z_loss_coef", 0 <= self.z_loss_coef <= 1, "allowed is 0 to 1; 1e-4 is usual")
        need("spike_threshold", self.spike_threshold > 0, "allowed are numbers above 0; 6 is usual")
        need("spike_window", self.spike_window >= 16, "allowed are whole numbers from 16 up; 128 is usual")
        need("rewind_lr_factor", 0 < self.rewind_lr_factor <= 1, "allowed is above 0 up to 1; 1 keeps the rate")
        self._check_rewind()
        need(
            "anneal_fraction",
            self.anneal_fraction is None or 0 < self.anneal_fraction <= 1,
            "allowed is above 0 up to 1; leave it out to begin with the decay of the learning rate",
        )
        need("learning_rate", self.learning_rate > 0, "allowed are numbers above 0")
        # What the libraries refuse late, or take and fail on.
        need("seed", 0 <= self.seed < 2**32, "allowed are whole numbers from 0 up to 2**32 - 1")
        need("dataloader_num_workers", self.dataloader_num_workers >= 0, "allowed are whole numbers from 0 up")
        for name in ("adam_beta1", "adam_beta2"):
            need(name, 0 <= getattr(self, name) < 1, "allowed is 0 up to (not including) 1")
        for name in ("weight_decay", "max_grad_norm", "adam_epsilon", "warmup_steps"):
            need(name, getattr(self, name) >= 0, "allowed are numbers from 0 up")
        if self.clipping != "norm" and self.max_grad_norm == 0:
            raise UserError(
                f"max_grad_norm = 0 turns clipping off, and clipping = {self.clipping} asks for it: give a bound, 1.0 "
                "is usual, or leave clipping out"
            )
        if self.max_runtime is not None:
            parse_duration("max_runtime", self.max_runtime)
        need("save_steps", self.save_steps > 0, "allowed are numbers above 0; save_strategy: 'no' saves none")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            need(name, getattr(self, name) >= 1, "allowed are whole numbers from 1 up")
        for name in self.report_to:
            if name not in INTEGRATION_TO_CALLBACK:
                raise UserError(f"report_to: {unknown_name_message('integration', name, INTEGRATION_TO_CALLBACK)}")
        if self.warmup_steps and self.warmup_fraction is not None:
            raise UserError(
                f"warmup_steps = {self.warmup_steps} and warmup_fraction = "
                f"{self.warmup_fraction} both give the warm-up; keep one"
            )

    def _check_rewind(self) -> None:
        if self.spike_action != "rewind":
            for name, default in (("rewind_skip_batches", None), ("rewind_lr_factor", 1.0), ("max_rewinds", 10)):
                if getattr(self, name) != default:
                    raise UserError(
                        f"{name} = {getattr(self, name)}; it acts with spike_action: rewind, and that is "
                        f"{self.spike_action}: set it, or leave {name} out"
                    )
            return
        why = "spike_action: rewind goes back to a checkpoint"
        if self.save_strategy == "no":
            raise UserError(f"save_strategy = 'no'; {why}: set save_strategy: steps and save_steps")
        if self.save_only_model:
            raise UserError(f"save_only_model = true; {why} with its optimizer: set save_only_model: false")
        if self.save_total_limit is not None and self.save_total_limit < 2:
            raise UserError(
                f"save_total_limit = {self.save_total_limit}; {why}, and to an older one if that does not help: "
                "keep 2 or more"
            )

    def _settle_batch(self) -> None:
        if self.global_batch_size is None:
            return
        per_pass = self.train_batch_size * self.world_size
        if self.global_batch_size % per_pass:
            raise UserError(
                f"global_batch_size = {self.global_batch_size}; it must be a multiple of per_device_train_batch_size "
                f"({self.per_device_train_batch_size}) times processes ({self.world_size}) = {per_pass}"
            )
        self.gradient_accumulation_steps = self.global_batch_size // per_pass

    def _settle_steps(self) -> None:
        if self.train_tokens is None:
            return
        steps = math.ceil(self.train_tokens / self.tokens_per_step)
        # A copy of the arguments brings the number of steps along, and then the two agree.
        if self.max_steps > 0 and self.max_steps != steps:
            raise UserError(
                f"train_tokens = {self.train_tokens} ({steps} steps of {self.tokens_per_step} tokens) and max_steps = "
                f"{self.max_steps} both give the length of the run; keep one"
            )
        self.max_steps = steps
