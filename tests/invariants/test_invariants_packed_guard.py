"""P1: documents never see each other, whatever a stock model is called with; a stock Trainer reads the same data."""

import pytest
import torch
from test_invariants_packing import DOCUMENTS, packed_row
from tiny_training import BATCH, LENGTH, arguments, tiny_llama, tiny_mixture
from transformers import DynamicCache, Trainer, TrainingArguments

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.packed_guard import PackedDocumentsCallback, keep_documents_apart
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.errors import UserError


def largest_difference(model, **options):
    batch = packed_row()
    with torch.no_grad():
        together = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], **options).logits[0]
        start, found = 0, 0.0
        for document in DOCUMENTS:
            alone = model(input_ids=torch.tensor([document]), use_cache=False).logits[0]
            found = max(found, float((together[start : start + len(document)] - alone).abs().max()))
            start += len(document)
    return found


CALLS = {
    "nothing": {},  # the configuration's use_cache is on
    "cache": {"use_cache": True},
    "ones": {"attention_mask": torch.ones(1, 16, dtype=torch.long), "use_cache": False},
    "both": {"attention_mask": torch.ones(1, 16, dtype=torch.bool)},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_a_guarded_model_keeps_documents_apart(attention, call):
    model = tiny_llama(initializer_range=0.15, num_hidden_layers=2).eval()
    model.set_attn_implementation(attention)
    options = {key: value.clone() if hasattr(value, "clone") else value for key, value in CALLS[call].items()}
    with torch.compiler.set_stance("force_eager"):  # compiling flex attention for a CPU takes minutes
        assert largest_difference(model, **options) > 1e-3
        keep_documents_apart(model)
        keep_documents_apart(model)
        assert largest_difference(model, **options) < 1e-5


def test_positional_masks_and_the_loss_are_mended_too():
    model = tiny_llama(initializer_range=0.15).eval()
    batch = packed_row()
    right = model(**batch, use_cache=False)
    keep_documents_apart(model)
    ones = torch.ones_like(batch["input_ids"])
    found = model(batch["input_ids"], ones, batch["position_ids"], labels=batch["labels"])
    torch.testing.assert_close(found.logits, right.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, right.loss)
    assert found.cache is None


def test_what_cannot_be_mended_is_refused_and_the_rest_left_alone():
    model = tiny_llama(initializer_range=0.15).eval()
    plain = model(torch.arange(8)[None]).logits
    prompt = torch.tensor([[0, 0, 5, 6]])
    padded = {"attention_mask": torch.tensor([[0, 0, 1, 1]]), "position_ids": torch.tensor([[1, 1, 0, 1]])}
    before = model(prompt, **padded).logits
    text = model.generate(torch.arange(1, 5)[None], max_new_tokens=5, do_sample=False, pad_token_id=0)
    keep_documents_apart(model)
    out = model(torch.arange(8)[None], position_ids=torch.arange(8)[None])
    assert torch.equal(out.logits, plain) and out.cache.get_seq_length() == 8
    assert torch.equal(model(prompt, **padded).logits, before)
    assert model.generate(torch.arange(1, 5)[None], max_new_tokens=5, do_sample=False, pad_token_id=0).equal(text)
    batch = packed_row()
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -1] = 0
    with pytest.raises(UserError, match="attention_mask has zeros in a packed row"):
        model(**batch, attention_mask=mask)
    cache = DynamicCache(config=model.config)
    model(torch.arange(4)[None], cache=cache)
    with pytest.raises(UserError, match="cache holds tokens"):
        model(batch["input_ids"], position_ids=batch["position_ids"], cache=cache)


def recorded(trainer):
    seen = []
    hook = trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append({key: kwargs[key].clone() for key in ("input_ids", "position_ids")}),
        with_kwargs=True,
    )
    trainer.train()
    hook.remove()
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_trainer_reads_what_pretrain_trainer_reads(tmp_path, workers):
    steps = 3
    ours = recorded(PretrainTrainer(tiny_llama(), arguments(tmp_path / "a", steps), train_dataset=tiny_mixture(steps)))
    args = TrainingArguments(
        str(tmp_path / "b"),
        max_steps=steps,
        per_device_train_batch_size=BATCH // 2,
        gradient_accumulation_steps=2,
        train_sampling_strategy="sequential",
        dataloader_num_workers=workers,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    )
    stock = Trainer(
        tiny_llama(use_cache=True),
        args,
        train_dataset=tiny_mixture(steps),
        data_collator=PretrainDataCollator(),
        callbacks=[PackedDocumentsCallback()],
    )
    theirs = recorded(stock)
    assert (len(ours), len(theirs)) == (steps, 2 * steps)
    for key in ("input_ids", "position_ids"):
        whole = torch.cat([batch[key] for batch in ours])
        assert whole.shape == (steps * BATCH, LENGTH)
        assert whole.equal(torch.cat([batch[key] for batch in theirs]))
    assert largest_difference(stock.model.eval(), **CALLS["both"]) < 1e-5
