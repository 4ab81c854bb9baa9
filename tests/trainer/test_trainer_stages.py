import pytest
import torch
from tiny_training import equal_weights, tiny_llama, tiny_strata, trainer, weights
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from hf_pretrain.trainer.stages import load_moments, load_start_model, load_strictly, optimizer_checkpoint
from hf_pretrain.utils.errors import UserError


def qwen(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3MoeConfig(vocab_size=64, num_experts=4, num_experts_per_tok=2, **sizes, **heads)
    return Qwen3MoeForCausalLM(config)


def test_half_precision_files_are_loaded_as_fp32(tmp_path):
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_start_model(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with pytest.raises(UserError, match="init_from = .*nowhere"):
        load_start_model(tmp_path / "nowhere")


def test_context_is_extended_and_survives_saving(tmp_path):
    model = tiny_strata(max_position_embeddings=32)
    model.save_pretrained(tmp_path / "short")
    longer = load_start_model(tmp_path / "short", {"rope_type": "yarn", "factor": 4})
    assert longer.config.max_position_embeddings == 128
    before, after = (item.model.rotary_emb.inv_freq for item in (model, longer))
    assert before[0] == after[0]
    assert after[-1] < before[-1]
    longer.save_pretrained(tmp_path / "long")
    assert torch.equal(load_start_model(tmp_path / "long").model.rotary_emb.inv_freq, after)
    with pytest.raises(UserError, match="extend_context = {'factor': 0.5}; .*must not be below"):
        load_start_model(tmp_path / "short", {"factor": 0.5})
    tiny_llama().save_pretrained(tmp_path / "llama")
    with pytest.raises(UserError, match="it works on Strata models"):
        load_start_model(tmp_path / "llama", {"factor": 4})


def test_moments_go_on_while_rates_are_new(tmp_path):
    first = trainer(tmp_path / "2_pretrain" / "checkpoints", steps=3, save_strategy="steps")
    first.train()
    checkpoint = optimizer_checkpoint(tmp_path / "2_pretrain")
    second = trainer(tmp_path / "next", steps=1, learning_rate=0.5, weight_decay=0.0)
    second.optimizer_checkpoint = checkpoint
    optimizer = second.create_optimizer()
    saved = first.optimizer.state_dict()["state"]
    loaded = optimizer.state_dict()["state"]
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[key]["exp_avg_sq"], saved[key]["exp_avg_sq"]) for key in saved)
    assert all(float(state["step"]) == 3 for state in loaded.values())
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}


def test_moments_of_another_model_are_refused(tmp_path):
    trainer(tmp_path / "a" / "checkpoints", steps=1, save_strategy="steps").train()
    checkpoint = optimizer_checkpoint(tmp_path / "a")
    wider = trainer(tmp_path / "b", tiny_llama(intermediate_size=32)).create_optimizer()
    with pytest.raises(UserError, match="the moments of parameter"):
        load_moments(wider, checkpoint)
    deeper = trainer(tmp_path / "b", tiny_llama(num_hidden_layers=2)).create_optimizer()
    with pytest.raises(UserError, match="has parameter groups of"):
        load_moments(deeper, checkpoint)
    with pytest.raises(UserError, match="holds no complete checkpoint with optimizer.pt"):
        optimizer_checkpoint(tmp_path / "nowhere")


def test_resume_restores_experts_that_are_saved_one_by_one(tmp_path):
    # The stock Trainer leaves the experts of such families at their random start, with a warning.
    saved = qwen(0)
    saved.save_pretrained(tmp_path)
    other = qwen(1)
    assert load_strictly(other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), other.parameters(), strict=True))
    strata = tiny_strata()
    strata.save_pretrained(tmp_path / "strata")
    assert not load_strictly(tiny_strata(1), tmp_path / "strata")


@pytest.mark.parametrize("make", [qwen, tiny_strata])
def test_mixtures_of_experts_resume_bit_by_bit(tmp_path, make):
    straight = trainer(tmp_path / "straight", make(0), steps=4)
    straight.train()
    trainer(tmp_path / "run", make(0), steps=4, save_strategy="steps", save_steps=2).train()
    resumed = trainer(tmp_path / "run", make(5), steps=4, save_strategy="steps", save_steps=2)
    resumed.train(str(tmp_path / "run" / "checkpoint-2"))
    assert equal_weights(weights(resumed), weights(straight))
