"""The objective on real models: both calls, evaluation, metrics, attach and detach."""

import copy
import pickle

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.utils.errors import UserError


SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def tiny(kind="llama"):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES))
    return Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES))


def batch(rows=3):
    ids = torch.randint(0, 32, (rows, 9), generator=torch.Generator().manual_seed(4))
    labels = ids.clone()
    labels[0, :4] = -100
    return ids, labels


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("implementation", ["auto", "reference", "chunked"])
def test_stock_model_gets_z_on_top_of_its_own_loss(kind, implementation):
    model = tiny(kind).train()
    ids, labels = batch()
    own = model(input_ids=ids, labels=labels)
    objective = CausalLMObjective(z_loss_coef=1e-2, implementation=implementation)
    objective.attach(model)
    output = model(input_ids=ids, labels=labels)
    lse = torch.logsumexp(output.logits[:, :-1].float(), dim=-1)[labels[:, 1:] != -100]
    expected = own.loss + 1e-2 * lse.square().mean()
    torch.testing.assert_close(output.loss, expected)
    metrics = objective.pop_metrics()
    assert metrics["ce_loss"] == pytest.approx(own.loss.item(), rel=1e-5)
    assert metrics["z_loss"] == pytest.approx((output.loss - own.loss).item(), rel=1e-3)
    assert metrics["lse_mean"] == pytest.approx(lse.mean().item(), rel=1e-5)
    assert metrics["lse_max"] == pytest.approx(lse.max().item(), rel=1e-5)
    assert objective.pop_metrics() == {}


def test_evaluation_is_cross_entropy_alone():
    model = tiny()
    ids, labels = batch()
    own = model(input_ids=ids, labels=labels).loss
    objective = CausalLMObjective(z_loss_coef=1e-1, label_smoothing=0.1)
    objective.attach(model)
    model.eval()
    torch.testing.assert_close(model(input_ids=ids, labels=labels).loss, own)  # gradients on, but not training
    model.train()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids, labels=labels).loss, own)
    assert objective.pop_metrics() == {} and objective.training_calls == 0
    assert model(input_ids=ids, labels=labels).loss > own


def test_metrics_weigh_by_tokens_not_by_calls():
    objective = CausalLMObjective(z_loss_coef=1e-2)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(4, 9, 32, generator=generator, requires_grad=True)
    _, labels = batch(rows=4)
    items = labels[:, 1:].ne(-100).sum()
    objective(logits, labels, 32, num_items_in_batch=items)
    whole = objective.pop_metrics()
    for row in range(4):
        objective(logits=logits[row : row + 1], labels=labels[row : row + 1], vocab_size=32, num_items_in_batch=items)
    assert objective.pop_metrics() == pytest.approx(whole, rel=1e-6)


def test_hidden_states_call_equals_logits_call():
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(2, 9, 8, generator=generator, requires_grad=True)
    weight = torch.randn(32, 8, generator=generator, requires_grad=True)
    labels = torch.randint(0, 32, (2, 9), generator=generator)
    objective = CausalLMObjective(z_loss_coef=1e-2)
    assert objective.takes_hidden_states is True
    fused = objective(hidden_states=hidden, lm_head_weight=weight, labels=labels, vocab_size=32, logit_softcap=4.0)
    capped = 4.0 * torch.tanh(hidden @ weight.t() / 4.0)
    torch.testing.assert_close(fused, objective(logits=capped, labels=labels, vocab_size=32))


def test_detach_leaves_no_trace_and_copies_work():
    model = tiny()
    before = dict(vars(model))
    objective = CausalLMObjective()
    objective.attach(model)
    twin = copy.deepcopy(model)
    assert twin.loss_function is not objective and twin.loss_function._model is twin
    pickle.loads(pickle.dumps(model))
    with pytest.raises(UserError, match="attached to a model already"):
        objective.attach(tiny())
    objective.detach()
    objective.detach()
    assert vars(model).keys() == before.keys() and model.loss_type == before["loss_type"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_objectives_can_be_detached_in_any_order(order):
    model = tiny()
    pair = [CausalLMObjective(), CausalLMObjective(z_loss_coef=1e-4)]
    for one in pair:
        one.attach(model)
    assert model.loss_function is pair[1]
    pair[order[0]].detach()
    assert model.loss_function is pair[order[1]]
    pair[order[1]].detach()
    assert "_loss_function" not in vars(model) and model.loss_type == "ForCausalLM"


def test_attach_makes_any_class_name_count_shifted_targets():
    """Bugs L3: transformers takes the loss type from the class name; a free name has none."""

    class Plain(LlamaForCausalLM):
        pass

    model = Plain(LlamaConfig(**SIZES))
    assert model.loss_type is None
    objective = CausalLMObjective()
    objective.attach(model)
    assert model.loss_type == "ForCausalLM"
    objective.detach()
    assert model.loss_type is None


def test_bad_input_is_named():
    with pytest.raises(UserError, match="z_loss_coef = -1"):
        CausalLMObjective(z_loss_coef=-1)
    with pytest.raises(UserError, match="Unknown loss implementation 'chunk'. Did you mean 'chunked'"):
        CausalLMObjective(implementation="chunk")
    with pytest.raises(UserError, match="has no loss_function"):
        CausalLMObjective().attach(torch.nn.Linear(2, 2))
    objective = CausalLMObjective()
    with pytest.raises(UserError, match="vocab_size = 31, but the head has 32 rows"):
        objective(logits=torch.zeros(1, 2, 32), labels=torch.zeros(1, 2, dtype=torch.long), vocab_size=31)
    with pytest.raises(UserError, match="needs logits, or hidden_states"):
        objective(labels=torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(UserError, match="lm_head_weight = None"):
        objective(hidden_states=torch.zeros(1, 2, 4), labels=torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("training", [False, True])
def test_head_of_strata_that_differs_from_the_config_is_refused(training):
    """Through the whole model, on hidden states (training) and on logits (evaluation)."""
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    model = StrataForCausalLM(StrataConfig(**{**SIZES, "max_position_embeddings": 64})).train(training)
    model.lm_head = torch.nn.Linear(16, 40, bias=False)
    objective = CausalLMObjective(z_loss_coef=1e-2)
    objective.attach(model)
    ids, labels = batch()
    with pytest.raises(UserError if training else ValueError, match="vocab_size = 32, but the head has 40 rows"):
        model(input_ids=ids, labels=labels)
    assert objective.pop_metrics() == {}
