"""The table of science section 4, bugs W1 and W2, and what is refused."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_pretrain.optim.schedules import DECAY_TYPES, SCHEDULES, check_schedule, lr_lambda, multiplier
from hf_pretrain.utils.errors import UserError


STEPS = (50, 325, 550, 775, 850, 900, 950, 1000)
TABLE = {
    ("cosine", None, 0.1): (0.5, 0.868198, 0.55, 0.231802, 0.160289, 0.127138, 0.106837, 0.1),
    ("d2z", None, 0.0): (0.5, 0.75, 0.5, 0.25, 0.166667, 0.111111, 0.055556, 0),
    ("wsd", "linear", 0.0): (0.5, 1, 1, 1, 0.75, 0.5, 0.25, 0),
    ("wsd", "1-sqrt", 0.0): (0.5, 1, 1, 1, 0.5, 0.292893, 0.133975, 0),
    ("wsd", "cosine", 0.0): (0.5, 1, 1, 1, 0.853553, 0.5, 0.146447, 0),
    ("wsd", "exp", 0.1): (0.5, 1, 1, 1, 0.562341, 0.316228, 0.177828, 0.1),
}


@pytest.mark.parametrize("key", TABLE, ids=str)
def test_table(key):
    name, form, floor = key
    for step, expected in zip(STEPS, TABLE[key], strict=True):
        value = multiplier(
            step,
            name=name,
            num_training_steps=1000,
            num_warmup_steps=100,
            num_decay_steps=200 if form else None,
            min_lr_ratio=floor,
            decay_type=form or "1-sqrt",
        )
        assert value == pytest.approx(expected, abs=5e-7)


def updates(*arguments, **options):
    factor = lr_lambda(*arguments, **options)
    return [factor(done) for done in range(arguments[1])]


def test_every_update_counts():
    """Bugs W1: the stack gives 0, .5, 1, 1, 1, 1, 1, .75, .5, .25 here."""
    values = updates("wsd", 10, num_warmup_steps=2, num_decay_steps=4, decay_type="linear")
    assert values == [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


def test_zero_length_phases():
    """Bugs W2."""
    assert updates("wsd", 3, num_decay_steps=0) == [1, 1, 1]
    assert updates("constant", 3) == [1, 1, 1]
    assert updates("linear", 1) == [0.0]
    assert updates("cosine", 2, num_warmup_steps=2) == [0.5, 1.0]
    assert updates("wsd", 4, num_warmup_steps=2, num_decay_steps=2, decay_type="linear", min_lr_ratio=0.5) == [
        0.5,
        1.0,
        0.75,
        0.5,
    ]


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(SCHEDULES),
    form=st.sampled_from(DECAY_TYPES),
    total=st.integers(1, 400),
    warmup=st.integers(0, 400),
    decay=st.integers(0, 400),
    floor=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_shape_of_every_schedule(name, form, total, warmup, decay, floor):
    arguments = {"num_warmup_steps": warmup, "min_lr_ratio": 0.0 if name == "d2z" else floor}
    if name in ("wsd", "infinite"):
        arguments.update(num_decay_steps=decay, decay_type=form)
    cooldown = 7 if name == "infinite" else 0
    if cooldown:
        arguments.update(num_cooldown_steps=cooldown, constant_ratio=max(floor, 0.4))
    try:
        check_schedule(name=name, num_training_steps=total, **arguments)
    except UserError:
        has_phases = name in ("wsd", "infinite")
        overlap = warmup + cooldown + decay > total
        assert warmup > total or (has_phases and (overlap or (form == "exp" and floor == 0.0)))
        return
    values = updates(name, total, **arguments)
    assert all(0.0 <= value <= 1.0 for value in values)
    assert values[0] > 0 or total == 1
    assert values[:warmup] == pytest.approx([(done + 1) / warmup for done in range(warmup)])
    after = values[max(warmup - 1, 0) :]
    assert all(late <= early + 1e-12 for early, late in zip(after, after[1:], strict=False))
    has_decay = (decay > 0) if name in ("wsd", "infinite") else (name != "constant" and total > warmup)
    assert values[-1] == (arguments["min_lr_ratio"] if has_decay else arguments.get("constant_ratio", 1.0))
    factor = lr_lambda(name, total, **arguments)
    assert factor(total + 5) == values[-1]


def test_with_torch_and_resume():
    """The first `optimizer.step()` has a rate above zero; a resumed scheduler goes on where it was."""

    def build():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        factor = lr_lambda("wsd", 10, num_warmup_steps=2, num_decay_steps=4, decay_type="linear")
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    optimizer, scheduler = build()
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        if len(rates) == 4:
            saved = pickle.loads(pickle.dumps((optimizer.state_dict(), scheduler.state_dict())))
    assert rates == [1, 2, 2, 2, 2, 2, 1.5, 1, 0.5, 0]
    optimizer, scheduler = build()
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    again = []
    for _ in range(6):
        again.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert again == rates[4:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wsd", 10, 5, 8), r"num_warmup_steps \+ num_decay_steps = 5 \+ 8; the run has 10"),  # bugs W1
        (("wsd", 10, 2), "num_decay_steps = None"),
        (("cosine", 10, 11), "num_warmup_steps = 11; the run has 10"),
        (("cosine", 10, 1, 2), "only wsd and infinite have a decay phase"),
        (("cosin", 10), "Unknown schedule 'cosin'. Did you mean 'cosine'"),
        (("wsd", 10, 0, 2, 0.0, "sqrt"), "Unknown decay_type 'sqrt'"),
        (("wsd", 10, 0, 2, 0.0, "exp"), "exponential decay never gets there"),
        (("d2z", 10, 0, None, 0.1), "d2z decays to zero"),
        (("linear", 0), "num_training_steps = 0"),
        (("linear", 10, True), "num_warmup_steps = True"),
        (("linear", 10, 1.5), "num_warmup_steps = 1.5"),
        (("linear", 10, -1), "num_warmup_steps = -1"),
        (("linear", 10, 0, None, 1.5), "min_lr_ratio = 1.5"),
        (("linear", 10, 0, None, float("nan")), "min_lr_ratio = nan"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        lr_lambda(*arguments)


def test_infinite_cools_down_holds_and_decays():
    options = {"name": "infinite", "num_warmup_steps": 100, "num_cooldown_steps": 200, "constant_ratio": 0.4}
    options |= {"num_training_steps": 1000, "num_decay_steps": 200, "min_lr_ratio": 0.04, "decay_type": "exp"}
    values = {step: multiplier(step, **options) for step in (1, 50, 100, 200, 300, 301, 800, 900, 1000, 1001)}
    expected = [0.01, 0.5, 1.0, 0.7, 0.4, 0.4, 0.4, 0.4 * 0.1**0.5, 0.04, 0.04]
    assert list(values.values()) == pytest.approx(expected)
    # The decay can be put off at any time before it begins: what came before stays.
    later = options | {"num_training_steps": 5000}
    assert all(multiplier(step, **options) == multiplier(step, **later) for step in range(1, 801))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_cooldown_steps": None}, "num_cooldown_steps = None"),
        ({"constant_ratio": None}, "constant_ratio = None"),
        ({"constant_ratio": 0.05}, "constant_ratio = 0.05"),
        ({"num_cooldown_steps": 701}, "100 [+] 701 [+] 200"),
        ({"name": "wsd"}, "only infinite has a constant rate"),
    ],
)
def test_infinite_refuses(changed, message):
    options = {"name": "infinite", "num_warmup_steps": 100, "num_cooldown_steps": 200, "constant_ratio": 0.4}
    options |= {"num_training_steps": 1000, "num_decay_steps": 200, "min_lr_ratio": 0.1}
    with pytest.raises(UserError, match=message):
        check_schedule(**{**options, **changed})
