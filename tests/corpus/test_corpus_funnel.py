"""The funnel: counts that the blocks themselves do not make, and sums that must agree."""

import copy

import pytest
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.filters.base_filter import BaseFilter

from hf_pretrain.corpus.funnel import Counted, build_funnel, check_funnel, find_alarms, merge_rows
from hf_pretrain.utils.atomic import read_json


class Rules(BaseFilter):
    """Drops by length with a reason, and shortens what stays."""

    name = "Rules"

    def filter(self, doc: Document):
        if len(doc.text) < 3:
            return False, "short"
        if "bad" in doc.text:
            return False, "bad_word"
        doc.text = doc.text.rstrip("!")
        return True


class Collect(PipelineStep):
    """Looks at everything before it yields anything, like deduplication."""

    name = "Collect"
    type = "TEST"

    def run(self, data, rank: int = 0, world_size: int = 1):
        yield from list(data)[::2]


class Swap(Collect):
    """Breaks the order, which is not allowed."""

    def run(self, data, rank: int = 0, world_size: int = 1):
        yield from reversed(list(data))


def documents() -> list[Document]:
    texts = [("web", "good text!!"), ("web", "x"), ("books", "a bad caf\u00e9"), ("web", "fine"), ("books", "b")]
    return [Document(text, str(i), metadata={"source": source}) for i, (source, text) in enumerate(texts)]


def run(stage: str, block: PipelineStep, tmp_path, given: list[Document] | None = None):
    out = list(Counted(stage, block, tmp_path, 0).run(iter(given or documents())))
    return out, read_json(tmp_path / "tallies" / "00_00000.json")


def test_counts_by_source_and_reason(tmp_path) -> None:
    out, rows = run("rules", Rules(), tmp_path)
    assert [document.id for document in out] == ["0", "3"]
    web, books = rows
    assert web["removed"] == {"short": {"documents": 1, "bytes": 1}}
    assert (web["documents_in"], web["documents_out"]) == (3, 2)
    assert (web["bytes_in"], web["bytes_out"], web["bytes_trimmed"]) == (16, 13, 2)
    assert books["removed"] == {"bad_word": {"documents": 1, "bytes": 11}, "short": {"documents": 1, "bytes": 1}}
    check_funnel(rows)
    examples = read_json(tmp_path / "examples" / "00_00000.json")
    assert examples["bad_word"] == [{"id": "2", "source": "books", "text": "a bad caf\u00e9"}]


def test_blocks_that_collect_first_and_blocks_without_reasons(tmp_path) -> None:
    out, rows = run("collect", Collect(), tmp_path / "a")
    assert [document.id for document in out] == ["0", "2", "4"]
    assert rows[0]["removed"] == {"collect": {"documents": 2, "bytes": 5}}
    _, rows = run("lambda", LambdaFilter(lambda document: False), tmp_path / "b")
    assert [row["documents_out"] for row in rows] == [0, 0]
    with pytest.raises(RuntimeError, match="out of order"):
        run("swap", Swap(), tmp_path / "c")


def test_seconds_are_those_of_the_block_alone(tmp_path) -> None:
    import time

    class Slow(PipelineStep):
        name, type = "Slow", "TEST"

        def run(self, data, rank: int = 0, world_size: int = 1):
            for document in data:
                time.sleep(0.01)
                yield document

    inner = Counted("inner", Slow(), tmp_path / "inner", 0)
    outer = Counted("outer", Collect(), tmp_path / "outer", 0)
    list(outer.run(inner.run(iter(documents()))))
    seconds = {
        name: sum(row["seconds"] for row in read_json(tmp_path / name / "tallies" / "00_00000.json"))
        for name in ("inner", "outer")
    }
    assert seconds["inner"] >= 0.05 > 0.02 > seconds["outer"]


def test_sums_that_disagree_are_found(tmp_path) -> None:
    _, rows = run("rules", Rules(), tmp_path)
    following = [
        {**row, "stage": "next", "documents_in": row["documents_out"], "bytes_in": row["bytes_out"]} for row in rows
    ]
    for row in following:
        row.update(removed={}, bytes_trimmed=0)
    check_funnel(rows + following)
    lost = copy.deepcopy(rows)
    lost[0]["removed"] = {}
    with pytest.raises(RuntimeError, match="rules, web: 3 documents and 16 bytes went in, 2 and 15"):
        check_funnel(lost)
    following[0]["documents_in"] = following[0]["documents_out"] = 1
    with pytest.raises(RuntimeError, match="but rules gave 2"):
        check_funnel(rows + following)


def test_tasks_add_up_and_totals_cover_sources(tmp_path) -> None:
    _, rows = run("rules", Rules(), tmp_path)
    merged = merge_rows(rows + copy.deepcopy(rows))
    assert [row["documents_in"] for row in merged] == [6, 4]
    funnel = build_funnel(merged, {"web": 10})
    (total,) = funnel["stages"]
    assert total["documents_in"] == 10 and total["removed"]["short"] == {"documents": 4, "bytes": 4}
    assert funnel["tokens"] == {"web": 10} and funnel["alarms"] == []


def test_alarm_when_a_source_is_nearly_lost() -> None:
    row = {
        "stage": "near",
        "source": "web",
        "documents_in": 100,
        "documents_out": 9,
        "removed": {"near_duplicate": {"documents": 91, "bytes": 1}},
    }
    assert find_alarms([row]) == ["web lost 91 of 100 documents at near, most as 'near_duplicate'"]
    assert find_alarms([{**row, "documents_out": 10}]) == []


def test_stages_stand_in_the_order_documents_meet_them() -> None:
    from hf_pretrain.corpus.funnel import stage_order

    walks = {"books": ["language", "exact"], "web": ["extract", "language", "c4", "exact"], "code": ["exact", "pii"]}
    rows = [{"source": source, "stage": stage} for source, stages in walks.items() for stage in stages]
    assert stage_order(rows) == ["extract", "language", "c4", "exact", "pii"]
