from pathlib import Path

import pytest

from hf_pretrain.trainer.stage_options import check_options, make_arguments, make_model_config, read_options
from hf_pretrain.utils.errors import UserError


GOOD = {"corpus": "1_corpus", "model": {"preset": "tiny-moe"}, "train_tokens": 1000, "seq_length": 16, "use_cpu": True}


def check(**changes):
    config = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    options = read_options(config, "F.yaml")
    args = make_arguments(options, Path("stage"), "F.yaml")
    check_options(options, args, "F.yaml")
    return options, args


def test_keys_are_sorted_into_stage_and_training():
    options, args = check(learning_rate="1e-3", mixture={"web": 0.5, "books": 0.5})
    assert options.corpus == "1_corpus"
    assert (args.learning_rate, args.seq_length) == (1e-3, 16)
    assert (args.output_dir, args.record_dir) == (str(Path("stage/checkpoints")), "stage")


def test_a_preset_can_be_changed_and_defaults_fill_what_it_leaves_open():
    model = {"preset": "tiny-moe", "num_experts": 4}
    config = make_model_config(model, "F.yaml", vocab_size=99, num_experts=2)
    assert (config.num_experts, config.vocab_size) == (4, 99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rat": 1.0}, "F.yaml: Unknown key 'learning_rat'. Did you mean 'learning_rate'"),
        ({"learning_rate": True}, "F.yaml: learning_rate = True; a number is expected"),
        ({"output_dir": "x"}, "Unknown key 'output_dir'"),
        ({"decay_fraction": 2.0}, "F.yaml: decay_fraction = 2.0"),
        ({"train_tokens": None}, "the key 'train_tokens' is missing"),
        ({"corpus": None}, "the key 'corpus' is missing"),
        ({"model": None}, "give one of the two"),
        ({"init_from": "2_pretrain"}, "give one of the two"),
        ({"model": {"hiden_size": 3}}, "model: Unknown key 'hiden_size'. Did you mean 'hidden_size'"),
        ({"model": {"hidden_size": 1.5}}, "model.hidden_size = 1.5; a whole number"),
        ({"model": {"preset": "tiny-mo"}}, "Unknown preset 'tiny-mo'. Did you mean 'tiny-moe'"),
        ({"model": {"num_attention_heads": 4, "num_key_value_heads": 3}}, "it must divide num_attention_heads"),
        ({"mixture": {"web": -1.0}}, "F.yaml: .*weights.web = -1.0"),
        ({"anneal_mixture": {"web": 0.0}}, "all weights are 0"),
        ({"continue_optimizer": True}, "continue_optimizer = True; it needs init_from"),
        ({"extend_context": {"factor": 4}}, "it needs init_from"),
    ],
)
def test_bad_files_name_file_and_key(changes, message):
    with pytest.raises(UserError, match=message):
        check(**changes)
