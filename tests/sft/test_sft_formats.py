"""Rows of the common shapes become one, and what cannot be trained on is counted."""

import json

import pytest

from hf_pretrain.sft.formats import UnusableRow, read_conversations, to_messages
from hf_pretrain.utils.errors import UserError


EXPECTED = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"prompt": "hi", "completion": "hello"},
        {"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "hello"}]},
    ],
)
def test_every_shape_gives_the_same_turns(row):
    assert to_messages(row) == EXPECTED


def test_a_user_turn_after_the_last_answer_is_left_out():
    turns = [*EXPECTED, {"role": "user", "content": "and then?"}]
    assert to_messages({"messages": turns}) == EXPECTED


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([("user", "hi")], "no_assistant_turn"),
        ([("user", "hi"), ("user", "hi"), ("assistant", "x")], "turn_order"),
        ([("assistant", "x")], "turn_order"),
        ([("user", " "), ("assistant", "x")], "empty_turn"),
        ([("user", "hi"), ("assistant", "\n")], "empty_turn"),
    ],
)
def test_rows_that_cannot_be_trained_on_say_why(turns, reason):
    with pytest.raises(UnusableRow) as caught:
        to_messages({"messages": [{"role": role, "content": text} for role, text in turns]})
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "hi"}, r"rows.jsonl:3 has text; .*messages.*is expected"),
        ({"messages": "hi"}, r"messages is a str; a list of turns"),
        ({"messages": [{"role": "tutor", "content": "hi"}]}, r"role = 'tutor'; one of"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, r"role = \['user'\]; one of"),
        ({"messages": [{"role": "user", "content": None}]}, r"content = None; text is expected"),
        (["hi"], r"is a list; an object"),
    ],
)
def test_unreadable_rows_raise_with_place(row, message):
    with pytest.raises(UserError, match=message):
        to_messages(row, "rows.jsonl:3")


def test_reading_a_folder_counts_rows_by_source(tmp_path):
    good = {"prompt": "hi", "completion": "hello", "source": "faq", "license": "MIT", "id": "a"}
    bad = {"prompt": "hi", "completion": " "}
    (tmp_path / "b.jsonl").write_text(json.dumps(bad) + "\n\n" + json.dumps(good) + "\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "x", "completion": "y"}) + "\n", encoding="utf-8")
    result = read_conversations(tmp_path)
    assert result.rows == {"a": 1, "b": 1, "faq": 1}
    assert result.unusable == {"b": {"empty_turn": 1}}
    assert [(row.source, row.id, row.license) for row in result.conversations] == [
        ("a", "a/0", None),
        ("faq", "a", "MIT"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "hi"', r"rows.jsonl:1 is no JSON"),
        (b"\xff\xfe\x00", r"is no UTF-8 text"),
        (b"5\n", r":1 is a int"),
    ],
)
def test_broken_files_raise_with_line(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_conversations(tmp_path / "rows.jsonl")


def test_missing_input_raises(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_conversations(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="holds no .jsonl files"):
        read_conversations(tmp_path)
