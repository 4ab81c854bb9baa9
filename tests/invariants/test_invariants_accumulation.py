"""One global batch, however it is cut into micro-batches: the same losses, gradients and weights."""

import pytest
from tiny_training import losses, tiny_llama, tiny_strata, trainer, weights


def run(folder, model, micro):
    # Plain SGD: Adam's first updates are signs, which turn rounding noise of 1e-9 into differences of the learning
    # rate.
    result = trainer(folder, model, steps=4, optim="sgd", learning_rate=0.05, per_device_train_batch_size=micro)
    result.train()
    norms = [entry["grad_norm"] for entry in result.state.log_history if "loss" in entry]
    return result, losses(result), norms, weights(result)


MODELS = {
    "llama": tiny_llama,
    "dense": lambda: tiny_strata(num_experts=0),
    # Balance of each sequence by itself does not depend on what else is in the micro-batch.
    "moe": lambda: tiny_strata(balance_scope="sequence", router_aux_loss_coef=0.1, router_z_loss_coef=0.01),
}


@pytest.mark.parametrize("name", MODELS)
def test_eight_by_one_is_two_by_four_is_one_by_eight(tmp_path, name):
    _, loss, norm, weight = run(tmp_path / "8", MODELS[name](), 8)
    for micro in (2, 1):
        _, other_loss, other_norm, other_weight = run(tmp_path / str(micro), MODELS[name](), micro)
        assert other_loss == pytest.approx(loss, abs=2e-5)
        assert other_norm == pytest.approx(norm, abs=2e-5)
        for key, value in weight.items():
            assert (value - other_weight[key]).abs().max() < 2e-5, key


@pytest.mark.parametrize("scope", ["micro", "global"])
def test_balance_over_the_micro_batch_is_weighted_not_multiplied(tmp_path, scope):
    # M2: the stack multiplies the balance term by the number of accumulation steps, here 8.
    def routed(micro):
        model = tiny_strata(balance_scope=scope, router_aux_loss_coef=1.0, router_z_loss_coef=0.0)
        _, loss, _, _ = run(tmp_path / str(micro), model, micro)
        return loss[0]

    # The term is near 1 whatever the split; multiplied it would be near 8.
    assert routed(1) == pytest.approx(routed(8), abs=0.1)
