"""The verdict on a spike is a function of what was measured."""

import math

import pytest

from hf_pretrain.trainer.verdict import DocumentLoss, Evaluation, Evidence, verdict


USUAL = {"usual_loss": 3.0, "usual_loss_std": 0.02, "usual_grad_norm": 1.0, "num_weights": 10_000}


def at(weights, loss, reference=3.0, precision="float32", **more):
    return Evaluation(weights, precision, loss, reference, **more)


def kind(*evaluations, **more):
    return verdict(Evidence(step=7, evaluations=evaluations, **{**USUAL, **more})).kind


def test_a_batch_that_is_high_at_healthy_weights_is_bad_data():
    assert kind(at("previous", 5.0), at("current", 5.1), recorded_loss=5.1) == "bad data"
    assert kind(at("previous", 5.0), recorded_loss=5.1) == "bad data"


def test_the_documents_that_hold_the_excess_are_named():
    documents = [DocumentLoss(9.0, 50, 0.7, "web", "d1"), DocumentLoss(3.1, 50, 0.3, "web", "d2")]
    found = verdict(Evidence(step=1, evaluations=[at("current", 5.0)], documents=documents, **USUAL))
    assert found.lines[-1] == "1 of 2 documents hold 70% of the excess, first web d1"


def test_all_batches_high_now_and_not_before_is_the_learning_rate():
    assert kind(at("previous", 3.0), at("current", 6.0, reference=5.9)) == "learning rate"
    assert kind(at("current", 6.0, reference=5.9)) == "learning rate"  # without a checkpoint, by the usual loss


def test_a_batch_high_before_the_weights_went_bad_is_still_bad_data():
    assert kind(at("previous", 6.0), at("current", 6.5, reference=3.5)) == "bad data"


@pytest.mark.parametrize(("rate", "expected"), [(3e-2, "learning rate"), (1e-3, "unknown")])
def test_a_rate_above_the_schedule_is_the_cause(rate, expected):
    measured = at("previous", 3.0), at("current", 3.0)
    assert kind(*measured, learning_rate=rate, planned_learning_rate=1e-3) == expected


def test_a_rate_of_zero_by_the_schedule_divides_by_nothing():
    assert kind(at("current", 3.0), learning_rate=0.0, planned_learning_rate=0.0) == "unknown"


def test_weights_that_are_not_finite_are_numerics_unless_the_rate_was_wrong():
    assert kind(at("current", math.nan), nonfinite_weights=3) == "numerics"
    wrong = {"learning_rate": 1.0, "planned_learning_rate": 1e-3}
    assert kind(at("current", math.nan), nonfinite_weights=3, **wrong) == "learning rate"


@pytest.mark.parametrize(("moved", "expected"), [(1, "numerics"), (100, "numerics"), (5_000, "learning rate")])
def test_few_weights_moved_too_far_were_changed_and_many_were_updated(moved, expected):
    assert kind(at("previous", 3.0), at("current", 9.0, reference=9.0), moved_too_far=moved) == expected


@pytest.mark.parametrize("half", [9.0, math.nan, math.inf])
def test_high_only_in_the_precision_of_the_run_is_numerics(half):
    assert kind(at("current", 3.0), at("current", half, precision="bfloat16")) == "numerics"
    assert kind(at("current", 3.0), at("current", 3.01, precision="bfloat16")) == "unknown"


def test_a_gradient_that_overflows_only_in_the_precision_of_the_run_is_numerics():
    full, half = at("current", 3.0, grad_norm=1.0), at("current", 3.0, precision="float16", grad_norm=math.inf)
    assert kind(full, half) == "numerics"


@pytest.mark.parametrize("seen", [{"recorded_loss": math.nan}, {"recorded_grad_norm": math.inf}])
def test_what_is_not_finite_and_does_not_come_again_is_numerics(seen):
    assert kind(at("current", 3.0, grad_norm=1.0, reference_grad_norm=1.0), **seen) == "numerics"


def test_a_finite_value_that_does_not_come_again_needs_the_very_weights():
    assert kind(at("current", 3.0), recorded_loss=7.0, exact_weights=True) == "numerics"
    assert kind(at("current", 3.0), recorded_loss=7.0) == "unknown"


def test_a_gradient_of_this_batch_alone_is_bad_data_and_of_all_the_learning_rate():
    this = at("current", 3.0, grad_norm=9.0, reference_grad_norm=1.0)
    every = at("current", 3.0, grad_norm=9.0, reference_grad_norm=8.0)
    assert (kind(this), kind(every)) == ("bad data", "learning rate")


def test_without_an_evaluation_nothing_is_known():
    found = verdict(Evidence(step=1, recorded_loss=9.0, **USUAL))
    assert (found.kind, len(found.lines)) == ("unknown", 1)


def test_noise_within_the_spread_is_no_rise():
    assert kind(at("previous", 3.3), at("current", 3.3), usual_loss_std=0.1) == "unknown"
