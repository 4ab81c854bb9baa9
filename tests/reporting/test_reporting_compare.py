from hf_pretrain.reporting.page import render_report
from hf_pretrain.reporting.run_data import RunData
from hf_pretrain.reporting.sections_compare import comparison_blocks


SCORES = {"web": {"ordered": 1.5, "uniform": 1.25, "difference": 0.25}}


def test_extra_runs_are_shown_and_escaped():
    micro = {"web": {"with": 1.0, "without": 1.5, "difference": -0.5}}
    facts = {
        "controls": {"3_anneal": {"scores": SCORES}},
        "micro_anneals": {
            "3_anneal/books": {"scores": micro, "candidate_share": 0.5, "train_tokens": 40_000},
        },
        "averages": {"mean": {"members": [{"path": "a<b>"}, {"path": "c"}]}},
    }
    blocks = comparison_blocks(RunData(facts))
    assert [block.title for block in blocks] == [
        "3_anneal in its order and with the same tokens in no order",
        "3_anneal/books: short anneals of 40.0k tokens, 50% of it and without it",
        "Averages",
    ]
    page = render_report(RunData({**facts, "stages": {}}))
    assert "a&lt;b&gt;, c" in page and "a<b>" not in page
    assert comparison_blocks(RunData({})) == []
