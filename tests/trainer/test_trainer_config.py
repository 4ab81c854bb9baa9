import copy
import dataclasses

import pytest
import torch
from transformers import TrainingArguments

from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.utils.errors import UserError


def make(**options):
    return PretrainConfig(output_dir="unused", use_cpu=True, **options)


def test_budget_in_tokens_gives_whole_steps():
    args = make(train_tokens=1000, seq_length=16, global_batch_size=8, per_device_train_batch_size=2)
    assert (args.gradient_accumulation_steps, args.tokens_per_step, args.max_steps) == (4, 128, 8)
    assert copy.deepcopy(args).max_steps == 8
    # A copy made from fields brings steps and budget along, and the two agree.
    again = make(train_tokens=1000, max_steps=8, seq_length=16, global_batch_size=8, per_device_train_batch_size=2)
    assert again.max_steps == 8


def test_pretraining_defaults():
    args = make()
    assert (args.adam_beta1, args.adam_beta2, args.weight_decay, args.max_grad_norm) == (0.9, 0.95, 0.1, 1.0)
    assert args.restore_callback_states_from_checkpoint
    assert not args.logging_nan_inf_filter
    assert not args.remove_unused_columns
    assert args.train_sampling_strategy == "sequential"
    assert args.report_to == []


def test_at_most_forty_fields_of_its_own():
    theirs = {item.name for item in dataclasses.fields(TrainingArguments)}
    assert len(PretrainConfig.__annotations__.keys() - theirs) <= 40


def test_warm_up_by_steps_or_share():
    assert make().warmup_updates(1000) == 10
    assert make(warmup_fraction=0.25).warmup_updates(10) == 3
    assert make(warmup_steps=7).warmup_updates(1000) == 7
    assert make(warmup_steps=0.5).warmup_updates(10) == 5
    assert make(warmup_fraction=0.0).warmup_updates(10) == 0


def test_numbers_written_as_text_are_read():
    # YAML reads 1e-4 as text.
    assert make(z_loss_coef="1e-4").z_loss_coef == 1e-4
    assert make(learning_rate="3e-4").learning_rate == 3e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z_loss_coef": True}, "z_loss_coef = True; a number is expected"),
        ({"seq_length": "long"}, "seq_length = 'long'"),
        ({"seq_length": 1}, "seq_length = 1; allowed are whole numbers from 2 up"),
        ({"schedule": "wds"}, "Unknown value 'wds'. Did you mean 'wsd'"),
        ({"decay_fraction": 1.5}, "decay_fraction = 1.5; allowed is 0 to 1"),
        ({"anneal_fraction": 0.0}, "anneal_fraction = 0.0; allowed is above 0 up to 1"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"seed": -1}, "seed = -1; allowed"),
        ({"dataloader_num_workers": -1}, "dataloader_num_workers = -1"),
        ({"adam_beta1": 1.0}, "adam_beta1 = 1.0; allowed is 0 up to"),
        ({"max_grad_norm": -1.0}, "max_grad_norm = -1.0"),
        ({"save_steps": 0}, "save_steps = 0.*save_strategy: 'no'"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size = 0"),
        ({"report_to": ["wandbb"]}, "report_to: Unknown integration 'wandbb'. Did you mean 'wandb'"),
        ({"warmup_steps": 5, "warmup_fraction": 0.1}, "both give the warm-up"),
        ({"train_tokens": 10000, "max_steps": 7}, "both give the length of the run"),
        ({"global_batch_size": 12}, r"global_batch_size = 12; it must be a multiple .* = 8"),
        ({"on_excess": "drop"}, "on_excess"),
        ({"max_epochs": "many"}, "max_epochs = 'many'"),
        ({"spike_window": 2}, "spike_window = 2"),
    ],
)
def test_bad_values_name_the_field(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


def test_machines_without_an_accelerator_train_on_the_cpu():
    """Without `use_cpu` the stack would train the processes of a launch apart, and say nothing."""
    assert PretrainConfig(output_dir="unused").use_cpu is not torch.accelerator.is_available()


def test_a_launch_that_would_not_train_together_is_refused(monkeypatch):
    config = PretrainConfig(output_dir="unused")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE = 2, but training would use 1 process"):
        config._check_launch()
