"""`PretrainTrainer`: transformers' `Trainer`, made exact for pretraining.

What it adds, each piece in its own file: the global order of samples whatever the number of processes (`loaders`),
learning rates by update with a warm first and an exact last step (`optim.schedules`), checkpoints that are complete or
absent (`checkpoint`), held-out loss as a mean over tokens and not over batches, optimizer steps without labels that
change nothing, the log and the data order on disk (`run_log`, `data.order`), and the callbacks a configuration asks
for (`default_callbacks`), and the way back from a loss spike (`recovery`). The training loop itself is the Trainer's.
"""

import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

from hf_pretrain.callbacks.data_ledger import DataLedgerCallback
from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.callbacks.preemption import PreemptionCallback
from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import ORDER_FILE, BatchSpan, DataOrder
from hf_pretrain.data.packed_guard import keep_documents_apart
from hf_pretrain.data.streaming import StreamingMixture
from hf_pretrain.evaluation.byte_lengths import token_byte_lengths
from hf_pretrain.optim.schedules import lr_lambda
from hf_pretrain.trainer.autopsy_callback import AutopsyCallback
from hf_pretrain.trainer.checkpoint import (
    check_free_space,
    checkpoint_step,
    discard_staging,
    latest_complete_checkpoint,
    read_manifest,
    why_incomplete,
)
from hf_pretrain.trainer.checkpoint_fit import check_fits
from hf_pretrain.trainer.checks import can_skip_logits, check_dataset, check_metrics, check_resume, name_the_loss
from hf_pretrain.trainer.data_state import DataState
from hf_pretrain.trainer.default_callbacks import default_callbacks
from hf_pretrain.trainer.effective_data import effective_data, log_effective_data
from hf_pretrain.trainer.held_out import HeldOutTotals
from hf_pretrain.trainer.loaders import RankSlice, make_loader, prepare_loader, sampler_of
from hf_pretrain.trainer.precision import PrecisionCallback, check_precision, sum_in_fp32
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.recovery import Recovery, check_rewind, with_rewinds
from hf_pretrain.trainer.resume_rules import (
    MIXTURE,
    ResumeChoice,
    apply_choice,
    choose_resume,
    group_settings,
    lr_with_rewarm,
    refresh_rates,
)
from hf_pretrain.trainer.run_lock import hold_folder, make_folder
from hf_pretrain.trainer.run_log import RunLog
from hf_pretrain.trainer.run_records import RunRecords
from hf_pretrain.trainer.saving import SavingMixin
from hf_pretrain.trainer.stages import load_moments, load_strictly
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)


class PretrainTrainer(SavingMixin):
    """A `Trainer` for pretraining.

    Args:
        model (`PreTrainedModel`): A causal language model with fp32 weights.
        args (`PretrainConfig`): The arguments.
        train_dataset (`MixtureDataset`, *optional*): The mixture, or a `StreamingMixture`. Other datasets work,
            without data order and trace; to resume they need `ignore_data_skip=False`.
        eval_dataset (`Dataset` or `dict[str, Dataset]`, *optional*): Held-out windows, or one set a source.
        processing_class (`PreTrainedTokenizerBase`, *optional*): The tokenizer, saved with every checkpoint; with it
            evaluation reports bits per byte.
        anneal_weights (`Mapping[str, float]`, *optional*): Mixture of the last part of the run.
        callbacks (`list[TrainerCallback]`, *optional*): More callbacks. One of a class that the configuration would
            add takes its place.
        async_save (`bool`, *optional*, defaults to `False`): Whether a thread writes checkpoints from a copy in host
            memory while training goes on.
        **kwargs: Other arguments of `Trainer`.

    Raises:
        UserError: If the arguments are no `PretrainConfig`, or dataset and arguments disagree.

    Example:

    ```python
    >>> args = PretrainConfig(output_dir="out", train_tokens=1_000_000, seq_length=256, global_batch_size=32)
    >>> trainer = PretrainTrainer(model, args, train_dataset=mixture)
    >>> trainer.train()
    ```
    """

    def __init__(
        self,
        model: Any,
        args: PretrainConfig,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        anneal_weights: Mapping[str, float] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        async_save: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, PretrainConfig):
            raise UserError(f"args is a {type(args).__name__}; PretrainTrainer takes a PretrainConfig")
        check_dataset(train_dataset, args)
        check_metrics(kwargs.get("compute_metrics"), args, model, callbacks or [])
        name_the_loss(model)
        check_rewind(args, train_dataset)
        make_folder(args.output_dir)
        keep_documents_apart(model)
        own = list(callbacks or [])
        pure_bf16 = any(isinstance(callback, PrecisionCallback) and callback.pure_bf16 for callback in own)
        check_precision(model, args, pure_bf16)
        given = {type(callback) for callback in own}
        standard = default_callbacks(args, model, train_dataset, anneal_weights, pure_bf16)
        own = [callback for callback in standard if type(callback) not in given] + own
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        kwargs.setdefault("data_collator", PretrainDataCollator(attn_implementation=attention))
        super().__init__(
            model,
            args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=own,
            **kwargs,
        )
        self.remove_callback(PrinterCallback)
        self.add_callback(RunRecords(self))
        sum_in_fp32(self.accelerator)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, AutopsyCallback):
                callback.trainer = self
        self.run_log = RunLog(args.record_dir or args.output_dir)
        self.optimizer_checkpoint: Path | None = None
        self.num_empty_steps = 0
        self._empty_in_a_row = 0
        self._step_is_empty = False
        self._resume_step = 0
        self._data_state = DataState(self._batch_cut())
        self._given_mixture = getattr(train_dataset, "requested_schedule", None)
        self._choice = ResumeChoice()
        self.run_id = ""
        self.async_save = async_save
        self.check_async_save()
        self.recovery = Recovery(self)
        self._log_is_open = False
        self._byte_lengths: torch.Tensor | None = None

    # ---- start and end of a run ----

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any) -> Any:
        """Trains, from the start or from a checkpoint.

        Args:
            resume_from_checkpoint (`str`, `Path` or `bool`, *optional*): A complete checkpoint, or `True` for the
                newest complete one in `output_dir`.
            **kwargs: Other arguments of `Trainer.train`.

        Returns:
            `TrainOutput`: Steps, mean training loss and metrics.

        Raises:
            UserError: If there is no complete checkpoint, it is of a run with other settings or another model, or
                another process trains in the folder.
            TrainingStopped: If `spike_action` is `"rewind"` and no rewind got the run past a spike.
        """
        with hold_folder(self.args.output_dir, self.args.process_index == 0):
            checkpoint = self.recovery.start(self._resolve_checkpoint(resume_from_checkpoint))
            if checkpoint is not None:
                check_fits(self.accelerator.unwrap_model(self.model), checkpoint)
            while True:
                output = self._train_from(checkpoint, **kwargs)
                checkpoint = self.recovery.next_checkpoint()
                if checkpoint is None or self.interrupted_by is not None:
                    return output

    def _train_from(self, checkpoint: Path | None, **kwargs: Any) -> Any:
        self._resume_step = 0 if checkpoint is None else (checkpoint_step(checkpoint) or 0)
        manifest = {} if checkpoint is None else (read_manifest(checkpoint) or {})
        self._choice = choose_resume(self.args, manifest, checkpoint, self._resume_step)
        self._data_state = DataState(self._batch_cut(), manifest, self._resume_step, self._given_mixture)
        check_resume(self.train_dataset, self.args, self._resume_step)
        self._data_state.begin_stream(self.train_dataset)
        if isinstance(self.train_dataset, MixtureDataset):
            self._data_state.apply(self.train_dataset, self.record_dir, MIXTURE in self.args.resume_changes)
            self._data_state.check_length(self.train_dataset, self.args.max_steps)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, DataLedgerCallback):
                callback.spans = self._data_state.spans
        self.run_id = manifest.get("run_id") or self._shared_run_id()
        self.num_empty_steps = manifest.get("num_empty_steps", 0)
        self._empty_in_a_row = 0
        self._log_is_open = False
        if self.args.should_save and self.args.save_strategy != "no":
            discard_staging(self.args.output_dir)
            check_free_space(self.args.output_dir, self._checkpoint_bytes() * ((self.args.save_total_limit or 1) + 1))
        try:
            return super().train(None if checkpoint is None else str(checkpoint), **kwargs)
        finally:
            preemption = self.find_callback(PreemptionCallback)
            if preemption is not None:
                preemption.restore_handlers()
            self.writer.wait()

    @property
    def interrupted_by(self) -> int | None:
        """Number of the signal that stopped the last `train()`, or `None`."""
        callback = self.find_callback(PreemptionCallback)
        return None if callback is None else callback.signal_number

    def find_callback(self, kind: type[TrainerCallback]) -> Any:
        """Finds a callback in use; a resume replaces those that carry state, so ask after training.

        Args:
            kind (`type[TrainerCallback]`): Its class.

        Returns:
            `TrainerCallback`: The first of the class, or `None`.
        """
        return next((item for item in self.callback_handler.callbacks if isinstance(item, kind)), None)

    def _resolve_checkpoint(self, choice: str | Path | bool | None) -> Path | None:
        if choice is None or choice is False:
            return None
        if choice is True:
            found = latest_complete_checkpoint(self.args.output_dir)
            if found is None:
                raise UserError(f"output_dir = {self.args.output_dir}; there is no complete checkpoint to go on from")
            return found
        fault = why_incomplete(choice)
        if fault is not None:
            raise UserError(f"resume_from_checkpoint = {choice}; {fault}: choose a complete checkpoint")
        return Path(choice)

    def _shared_run_id(self) -> str:
        ids = [uuid.uuid4().hex[:12]]
        if self.args.world_size > 1:
            torch.distributed.broadcast_object_list(ids)
        return ids[0]

    def _checkpoint_bytes(self) -> int:
        # Weights and two Adam moments; the rest is small.
        parameters = self.accelerator.unwrap_model(self.model).parameters()
        return sum(3 * parameter.numel() * parameter.element_size() for parameter in parameters)

    @property
    def record_dir(self) -> Path:
        """`Path`: Folder of `log.jsonl`, `data_order.json` and `rewinds.json`."""
        return Path(self.args.record_dir or self.args.output_dir)

    def samples_after(self, step: int) -> int:
        """Counts the samples trained on.

        Args:
            step (`int`): Optimizer steps made.

        Returns:
            `int`: The position of the next sample.
        """
        return self._data_state.samples_after(step)

    def _batch_cut(self) -> BatchSpan:
        return BatchSpan(0, 0, self.args.sequences_per_step, self.args.world_size, self.args.train_batch_size)

    def write_data_order(self) -> None:
        """Writes `data_order.json`, joined with that of the run it goes on from.

        Raises:
            UserError: If the resumed run would have read other samples in the steps already made.
        """
        dataset = self.train_dataset
        if not isinstance(dataset, MixtureDataset):
            return
        cut = self._batch_cut()
        order = DataOrder.of(dataset, cut.global_batch, cut.world_size, cut.micro_batch)
        folder = self.record_dir
        if self._resume_step and (folder / ORDER_FILE).is_file():
            order = DataOrder.read(folder).continued_by(order, self._resume_step)
        if self.args.should_save:
            order.write(folder)
            for plan in dataset.plan():
                held = f"{plan.epochs:.2f} epochs of the {plan.unique_tokens:,} it holds"
                logger.info("%s: %s tokens planned, %s", plan.name, f"{plan.tokens:,}", held)
            log_effective_data(effective_data(dataset.plan()))

    # ---- data ----

    def get_train_dataloader(self) -> Any:
        """Makes the loader of training batches, beginning at the first sample not yet read.

        Returns:
            `DataLoader`: Prepared by accelerate: each process gets its part of every global batch.
        """
        dataset = self.train_dataset
        if not isinstance(dataset, (MixtureDataset, StreamingMixture)):
            return super().get_train_dataloader()
        start = self._data_state.samples_after(self._resume_step)
        collator = self.data_collator
        if type(collator) is PretrainDataCollator and isinstance(dataset, MixtureDataset):
            collator = PretrainDataCollator(count_targets=True, attn_implementation=collator.attn_implementation)
        loader = make_loader(
            dataset,
            self.args.seed,
            sampler=sampler_of(dataset, start),
            batch_size=self._train_batch_size,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=self.args.dataloader_persistent_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )
        return prepare_loader(loader, self.accelerator)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """Collects the micro-batches of one optimizer step and counts their targets.

        Args:
            epoch_iterator (`Iterator`): Micro-batches.
            num_batches (`int`): How many.
            device (`torch.device`): Where the count goes.

        Returns:
            `tuple[list, Any]`: The micro-batches and the number of targets over all processes.

        Raises:
            UserError: If too many steps in a row have no target.
        """
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        local = [batch.pop("num_targets", None) for batch in batches]
        # Reading the global count stops the device's queue; it can only be zero where the local one is.
        known_zero = bool(batches) and (None in local or sum(local) == 0)
        self._step_is_empty = known_zero and num_items is not None and int(num_items) == 0
        if self._step_is_empty:
            self.num_empty_steps += 1
            self._empty_in_a_row += 1
            step = self.state.global_step + 1
            logger.warning(
                "Step %d holds no label (%d such steps so far): nothing is updated", step, self.num_empty_steps
            )
            if self._empty_in_a_row >= self.args.empty_step_limit:
                raise UserError(
                    f"{self._empty_in_a_row} optimizer steps in a row up to step {step} hold no "
                    "label; look at the data with "
                    f"`hf-pretrain trace`, or raise empty_step_limit = {self.args.empty_step_limit}"
                )
        elif batches:
            self._empty_in_a_row = 0
        return batches, num_items

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Makes one forward and backward pass; none where the whole optimizer step has no target.

        Without gradients the optimizer leaves weights and moments bit by bit as they are. The learning rate stays a
        function of the step.

        Args:
            model (`Module`): The model, wrapped as the Trainer trains it.
            inputs (`dict`): One micro-batch.
            num_items_in_batch (`Tensor` or `int`, *optional*): Targets of the optimizer step over all processes.

        Returns:
            `Tensor`: The detached loss, a share of the step's.
        """
        if self._step_is_empty:
            return torch.zeros((), device=self.args.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        norm = super()._clip_grad_norm(model)
        spikes = self.find_callback(LossSpikeCallback)
        if spikes is not None and not self._step_is_empty:
            # Callbacks see gradients only after clipping.
            spikes.observe_grad_norm(norm)
        return norm

    # ---- optimizer ----

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Makes the optimizer, with the moments of an earlier stage where `optimizer_checkpoint` names one.

        Args:
            model (`Module`, *optional*): The model whose parameters it gets.

        Returns:
            `Optimizer`: The optimizer.
        """
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self.optimizer_checkpoint is not None and not self._resume_step:
            load_moments(optimizer, self.optimizer_checkpoint)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Makes the learning-rate schedule.

        Args:
            num_training_steps (`int`): Updates of the run.
            optimizer (`Optimizer`, *optional*): The optimizer.

        Returns:
            `LambdaLR`: The schedule.

        Raises:
            UserError: If warm-up and decay do not fit into the run.
        """
        if self.lr_scheduler is None:
            factor = lr_with_rewarm(lr_lambda(**self.args.schedule_options(num_training_steps)), self._choice.rewarm)
            factor = with_rewinds(factor, self.recovery.rewinds)
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- evaluation ----

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Computes the held-out loss as a mean over tokens, the same for every batch size and number of processes.

        Args:
            dataloader (`DataLoader`): Held-out batches.
            description (`str`): What the log calls it.
            prediction_loss_only (`bool`, *optional*): Where it is false, the Trainer's own loop is used, which gathers
                predictions.
            ignore_keys (`list[str]`, *optional*): Outputs not gathered.
            metric_key_prefix (`str`, *optional*, defaults to `"eval"`): First part of the metrics' names.

        Returns:
            `EvalLoopOutput`: With `<prefix>_loss`, `<prefix>_tokens`, and `eval_bits_per_byte/<source>` where the
            tokenizer is known.
        """
        dataset = getattr(dataloader, "dataset", None)
        if not prediction_loss_only or not hasattr(dataset, "__getitem__"):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        # Not prepared by accelerate: a model prepared for evaluation counts as prepared for good, and a later training
        # in
        # several processes would get no DDP around it and never average a gradient.
        model = self.model
        model.eval()
        loader = make_loader(
            RankSlice(dataset, self.args.process_index, self.args.world_size),
            self.args.seed,
            batch_size=self.args.eval_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        # Only the loss is wanted: a forward that can do without all logits shall.
        skip = {"skip_logits": True} if can_skip_logits(self.accelerator.unwrap_model(model)) else {}
        totals = HeldOutTotals(self.args.device, self._token_bytes(), **skip)
        for batch in loader:
            with self.compute_loss_context_manager(), self.accelerator.autocast():
                totals.add(model, self._prepare_inputs(batch), self.model_accepts_loss_kwargs)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        metrics = totals.metrics(metric_key_prefix, self.args.world_size)
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataset))

    def _token_bytes(self) -> torch.Tensor | None:
        if self.processing_class is None:
            return None
        if self._byte_lengths is None:
            try:
                lengths = token_byte_lengths(self.processing_class)
            except UserError as error:
                logger.info("No bits per byte: %s", error)
                lengths = []
            self._byte_lengths = torch.as_tensor(lengths, device=self.args.device)
        return self._byte_lengths if len(self._byte_lengths) else None

    # ---- records ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs a line, and writes it with what the callbacks added to `log.jsonl`.

        Args:
            logs (`dict[str, float]`): The values.
            start_time (`float`, *optional*): When training began.
        """
        super().log(logs, start_time)
        entry = self.state.log_history[-1]
        entry.update({key: value for key, value in logs.items() if key not in entry})
        if not self.is_world_process_zero():
            return
        if self._log_is_open:
            self.run_log.append(entry)
        else:
            self._log_is_open = True
            self.run_log.restart(self.state.log_history)

    # ---- checkpoints ----

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        fresh = group_settings(self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)
        apply_choice(self._choice, self.optimizer, self.lr_scheduler, fresh)
        if self.recovery.rewinds:
            refresh_rates(self.optimizer, self.lr_scheduler)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or not load_strictly(self.model, resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied head is saved once, under the embedding's name; its own name is not missing.
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))
