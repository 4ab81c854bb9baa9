import pytest

from hf_pretrain.data.order_guard import order_warnings
from hf_pretrain.data.schedule import MixtureSchedule


@pytest.mark.parametrize(
    ("anneal", "message"),
    [
        ({"books": 1.0}, "from phase 'stable' to 'anneal' 80% of the tokens change their source"),
        ({"web": 0.6, "books": 0.4}, "phase 'anneal' reads nothing more of code (20%)"),
        ({"web": 0.3, "books": 0.5, "code": 0.2}, None),
    ],
)
def test_large_changes_are_named(anneal, message):
    schedule = MixtureSchedule.from_weights({"web": 6, "books": 2, "code": 2}, 100).with_phase("anneal", 90, anneal)
    assert order_warnings(schedule) == ([message] if message else [])
    assert order_warnings(MixtureSchedule.from_weights({"web": 1.0}, 10)) == []
