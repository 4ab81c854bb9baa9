"""Tied embeddings are one tensor: after building, training, saving, resuming and loading for a next stage."""

from safetensors import safe_open
from tiny_training import tiny_llama, tiny_strata, trainer

from hf_pretrain.trainer.stages import load_start_model


def is_tied(model):
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_tied_through_a_whole_run(tmp_path):
    # E1, E2: loading with assignment and building on the meta device untie silently.
    for make in (tiny_strata, lambda: tiny_llama(tie_word_embeddings=True)):
        folder = tmp_path / make().config.model_type
        run = trainer(folder, make(), steps=2, save_strategy="steps", save_steps=1)
        run.train()
        assert is_tied(run.model)
        resumed = trainer(folder, make(), steps=2, save_strategy="steps", save_steps=1)
        resumed.train(str(folder / "checkpoint-1"))
        assert is_tied(resumed.model)
        with safe_open(folder / "checkpoint-2" / "model.safetensors", framework="pt") as tensors:
            assert "lm_head.weight" not in tensors.keys()
        assert is_tied(load_start_model(folder / "checkpoint-2"))


def test_untied_stays_untied(tmp_path):
    run = trainer(tmp_path, tiny_strata(tie_word_embeddings=False), steps=1, save_strategy="steps")
    run.train()
    assert not is_tied(run.model)
    assert not is_tied(load_start_model(tmp_path / "checkpoint-1"))
