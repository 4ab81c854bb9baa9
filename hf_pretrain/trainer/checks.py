"""What is checked before the first step: dataset and arguments agree."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.streaming import StreamingMixture
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.utils.errors import UserError


# Arguments of transformers that have one right value here.
NEEDED = (
    ("ignore_data_skip", True, "the sampler itself starts at the right sample, and skipping would skip twice"),
    ("remove_unused_columns", False, "position_ids keep packed documents apart and must reach the model"),
    ("restore_callback_states_from_checkpoint", True, "the spike detector and the token count go on where they were"),
)


def check_dataset(dataset: Any, args: PretrainConfig) -> None:
    """Makes sure that a mixture fits the arguments.

    Args:
        dataset (`Dataset`): The training data.
        args (`PretrainConfig`): The arguments.

    Raises:
        UserError: If window lengths differ, the schedule is too short, or the sampler would shuffle.
    """
    if not isinstance(dataset, (MixtureDataset, StreamingMixture)):
        return
    if dataset.seq_length != args.seq_length:
        raise UserError(
            f"seq_length = {args.seq_length}; the dataset's windows have {dataset.seq_length} "
            "tokens: give both the same"
        )
    needed = args.max_steps * args.sequences_per_step
    samples = dataset.num_samples if isinstance(dataset, StreamingMixture) else len(dataset)
    if args.max_steps > 0 and samples < needed:
        raise UserError(
            f"max_steps = {args.max_steps}; {needed} samples are needed, the schedule has "
            f"{samples}: make it as long as "
            "the run"
        )
    if args.global_batch_size is not None and args.global_batch_size != args.sequences_per_step:
        raise UserError(
            f"global_batch_size = {args.global_batch_size}; a step now has "
            f"{args.sequences_per_step} sequences, because the "
            "batch or the number of processes was changed afterwards: make the PretrainConfig anew"
        )
    for name, needed, why in NEEDED:
        if getattr(args, name) is not needed:
            raise UserError(f"{name} = {getattr(args, name)}; with a mixture it must be {needed}: {why}")
    if args.train_sampling_strategy != "sequential":
        raise UserError(
            f"train_sampling_strategy = {args.train_sampling_strategy!r}; the order is in the "
            "dataset, so only 'sequential' keeps "
            "its phases"
        )


def check_resume(dataset: Any, args: PretrainConfig, step: int) -> None:
    """Makes sure that a resumed run does not begin its data anew.

    Args:
        dataset (`Dataset`): The training data.
        args (`PretrainConfig`): The arguments.
        step (`int`): Optimizer steps made before.

    Raises:
        UserError: If nothing would bring the dataset to where the run stands.
    """
    if step and args.ignore_data_skip and not isinstance(dataset, (MixtureDataset, StreamingMixture)):
        raise UserError(
            f"ignore_data_skip = True; from step {step} on the train_dataset ({type(dataset).__name__}) would be read "
            "from its first sample again: set ignore_data_skip=False, which reads and drops what was trained on, or "
            "use a MixtureDataset or StreamingMixture, which begin at the right sample"
        )


def name_the_loss(model: Any) -> None:
    """Makes the Trainer count shifted targets whatever the class is called (bugs L3).

    transformers takes the type of a model's loss from its class name, and counts the targets of a name without
    `ForCausalLM` unshifted, so their losses come out too small.

    Args:
        model (`PreTrainedModel`): The model; its `loss_type` is set where transformers found none.
    """
    if hasattr(type(model), "loss_function") and getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"


def can_skip_logits(model: Any) -> bool:
    """Tells whether a forward takes `skip_logits` (Strata's and Liger's do), and so can give the loss alone.

    Args:
        model (`PreTrainedModel`): The model, without wrappers.

    Returns:
        `bool`: Whether it does.
    """
    return "skip_logits" in inspect.signature(model.forward).parameters


def check_metrics(
    compute_metrics: Callable[..., Any] | None, args: PretrainConfig, model: Any, callbacks: Iterable[Any]
) -> None:
    """Makes sure that `compute_metrics` gets logits.

    Args:
        compute_metrics (`Callable`, *optional*): What the Trainer was given.
        args (`PretrainConfig`): The arguments.
        model (`PreTrainedModel`): The model, with its loss.
        callbacks (`Iterable[TrainerCallback]`): What the Trainer was given.

    Raises:
        UserError: If evaluation would give no logits, or would never call the function.
    """
    if compute_metrics is None:
        return
    if args.prediction_loss_only:
        raise UserError(
            "prediction_loss_only = True; compute_metrics is given and would never be called; leave one of them out."
        )
    for owner in (getattr(model, "loss_function", None), *callbacks):
        if getattr(owner, "fused_evaluation", False):
            raise UserError(
                f"fused_evaluation = True in {type(owner).__name__}; evaluation then gives no logits, which "
                "compute_metrics needs; set it to False, or leave compute_metrics out."
            )
