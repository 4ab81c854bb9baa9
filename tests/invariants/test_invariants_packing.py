"""Documents packed into one row: the same loss as each alone, through dataset, collator and model."""

import pytest
import torch
from tiny_training import tiny_llama, tiny_strata

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import WindowDataset
from hf_pretrain.data.token_source import TokenSource


DOCUMENTS = [[5, 6, 7, 0], [9, 10, 11, 12, 13, 0], [3, 0], [20, 21, 22, 0]]


def packed_row():
    tokens = [token for document in DOCUMENTS for token in document]
    ends = torch.tensor([len(document) for document in DOCUMENTS]).cumsum(0).tolist()
    source = TokenSource.from_arrays("a", tokens, ends, 64, 0)
    return PretrainDataCollator()([WindowDataset(source, len(tokens))[0]])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [tiny_llama, tiny_strata])
def test_packed_documents_do_not_see_each_other(make, attention, training):
    # P1: with an all-ones mask or a cache the stack lets later documents see earlier ones, and the loss looks fine.
    model = make().train(training)
    model.config.use_cache = False
    model.set_attn_implementation(attention)
    batch = packed_row()
    with torch.no_grad():
        together = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[0]
        start = 0
        for document in DOCUMENTS:
            alone = model(input_ids=torch.tensor([document])).logits[0]
            torch.testing.assert_close(together[start : start + len(document)], alone, atol=1e-5, rtol=0)
            start += len(document)


@pytest.mark.parametrize("make", [tiny_llama, lambda: tiny_strata(router_aux_loss_coef=0.0, router_z_loss_coef=0.0)])
def test_packed_loss_is_the_mean_over_the_documents_targets(make):
    model = make().eval()
    model.config.use_cache = False
    batch = packed_row()
    with torch.no_grad():
        together = model(**batch).loss
        sums = [
            model(input_ids=torch.tensor([document]), labels=torch.tensor([document]), num_items_in_batch=1).loss
            for document in DOCUMENTS
        ]
    targets = sum(len(document) - 1 for document in DOCUMENTS)
    assert int((batch["labels"][:, 1:] != -100).sum()) == targets
    torch.testing.assert_close(together, torch.stack(sums).sum() / targets, atol=1e-5, rtol=0)
