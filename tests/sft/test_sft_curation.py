"""The funnel: every row that goes has a reason, the reasons add up, and the order of rows does not matter."""

import random

import numpy as np
import pytest

from hf_pretrain.corpus.contamination.index import BenchmarkItem, ContaminationIndex
from hf_pretrain.sft.curation import (
    CurationConfig,
    curate,
    quality,
    repetition,
    rule_violated,
    select_diverse,
    word_vectors,
)
from hf_pretrain.sft.formats import Conversation, ReadResult
from hf_pretrain.utils.errors import UserError


TOPICS = (
    "bread flour oven yeast salt water dough rise knead bake",
    "whales ships sea winter harbour sailors storm anchor rope mast",
    "python list loop index function string value return class module",
    "garden roses soil rain sun seeds spring bees hedge pruning",
    "trains station ticket platform rails engine steam timetable guard whistle",
)


def row(number, prompt=None, answer=None, source="faq", **extra):
    words = TOPICS[number % len(TOPICS)].split()
    random.Random(number).shuffle(words)
    return Conversation(
        (
            {
                "role": "user",
                "content": prompt or f"Please explain matter number {number} of {words[0]} and {words[1]}?",
            },
            {"role": "assistant", "content": answer or f"Matter {number} is about " + " and ".join(words) + "."},
        ),
        source,
        str(number),
        **extra,
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("As an AI language model, I do not have feelings about bread.", "refusal"),
        ("I'm sorry, but I can't talk about bread in this conversation.", "refusal"),
        ("I cannot assist with that request for the recipe of bread.", "refusal"),
        ("Yes.", "short_answer"),
        ("a word again and " * 3000, "long_answer"),
        ("Here it is: ```python\nprint(1) and nothing closes it", "open_code_fence"),
        ("The bread \ufffd is broken text somewhere here.", "broken_text"),
        ("one two three four one two three four one two three four", "repetitive"),
        ("How do I bake BREAD  at home?", "answer_is_prompt"),
        ("I am sorry for the long loaf; bake it for an hour and let it cool.", None),
        ("As an airline pilot I bake bread on Sundays for the whole crew.", None),
    ],
)
def test_rules(answer, reason):
    assert rule_violated(row(0, "How do I bake bread at home?", answer), CurationConfig()) == reason


def test_prompt_lengths():
    assert rule_violated(row(0, "Hm?"), CurationConfig()) == "short_prompt"
    assert rule_violated(row(0, "Hm? " * 5000), CurationConfig()) == "long_prompt"


def test_repetition_is_the_share_of_words_in_repeated_runs():
    assert repetition("a b c d e f g h") == 0
    assert repetition("a b c d a b c d") == pytest.approx(0.5)
    assert repetition("a b") == 0


def test_counts_add_up_and_order_does_not_matter():
    rows = [row(number, source=("faq", "wiki", "code")[number % 3]) for number in range(40)]
    rows += [row(100, answer="No."), row(101, prompt=rows[0].prompt), row(102, answer="I am an AI and have no bread.")]
    config = CurationConfig(max_per_source=10, max_examples=12)
    first = curate(rows, config)
    random.Random(3).shuffle(rows)
    again = curate(rows, config)
    assert first.kept == again.kept and first.dropped == again.dropped
    facts = first.as_facts()
    assert facts["rows"] == facts["kept"] + sum(facts["dropped"].values()) == 43
    assert facts["kept"] == 12
    assert facts["dropped"]["short_answer"] == facts["dropped"]["refusal"] == facts["dropped"]["duplicate_prompt"] == 1
    for source in facts["sources"].values():
        assert source["rows"] == source["kept"] + sum(source["dropped"].values())


def test_unusable_rows_are_part_of_the_funnel():
    result = ReadResult([row(1)], {"faq": 3}, {"faq": {"empty_turn": 2}})
    facts = curate(result, CurationConfig()).as_facts()
    assert facts["rows"] == 3 and facts["kept"] == 1 and facts["dropped"]["empty_turn"] == 2


def test_near_equal_prompts_keep_the_better_answer():
    long_prompt = "Please tell me in a few clear words how one bakes a loaf of white bread in an old oven at home"
    rows = [
        row(1, long_prompt + " today", "Mix flour with water, then bake it."),
        row(2, long_prompt + " now", "Mix flour, water, salt and yeast; wait an hour; knead; bake until it is brown."),
    ]
    result = curate(rows, CurationConfig(near_duplicate_threshold=0.7))
    assert [kept.id for kept in result.kept] == ["2"]
    assert result.dropped["near_duplicate_prompt"] == {"faq": 1}
    assert len(curate(rows, CurationConfig(near_duplicate_threshold=1.0)).kept) == 2


def test_benchmark_items_are_found_in_prompt_and_answer():
    question = "Which of the four seasons follows after the winter in the northern half of the earth each year?"
    index = ContaminationIndex.build([BenchmarkItem("quiz", "7", "question", question)])
    rows = [row(1, f"A riddle for you: {question.upper()}"), row(2, answer=f"Ask them: {question}"), row(3)]
    result = curate(rows, CurationConfig(), index)
    assert [kept.id for kept in result.kept] == ["3"]
    assert result.dropped["contaminated"] == {"faq": 2}
    assert "contaminated" not in curate(rows, CurationConfig(decontaminate=False), index).dropped


def test_languages_are_compared_as_languages():
    rows = [row(1, language="eng"), row(2, language="fr")]
    result = curate(rows, CurationConfig(languages=["en"]))
    assert [kept.id for kept in result.kept] == ["1"] and result.dropped["language"] == {"faq": 1}
    text = "Le pain est fait de farine, d'eau, de sel et de levure, puis il est cuit au four pendant une heure."
    assert curate([row(3, answer=text)], CurationConfig(languages=["fra"])).kept


def test_selection_takes_sources_in_turn_and_passes_over_copies():
    rows = [row(number, source="big") for number in range(0, 50, 5)] + [row(3, source="small")]
    copies = [row(900 + n, prompt=f"Copy {n}: why?", answer=rows[0].answer, source="copies") for n in range(3)]
    passed, taken = select_diverse([*rows, *copies], budget=4, max_similarity=0.9)
    sources = [([*rows, *copies])[place].source for place in taken]
    assert sources.count("small") == 1 and "copies" in sources
    assert len(taken) == 4
    # DEITA's rule: nothing taken is closer than the threshold to anything taken before it.
    vectors = word_vectors([f"{r.prompt}\n{r.answer}" for r in [*rows, *copies]])[taken]
    similarity = vectors @ vectors.T - 2 * np.eye(len(taken))
    assert similarity.max() <= 0.9 + 1e-6
    assert not set(passed) & set(taken)


def test_word_vectors_have_unit_length_and_see_likeness():
    vectors = word_vectors([*TOPICS, TOPICS[0] + " crust", ""])
    norms = np.linalg.norm(vectors, axis=1)
    assert norms[:-1] == pytest.approx(1) and norms[-1] == 0
    likeness = vectors[:5] @ vectors[5]
    assert likeness.argmax() == 0 and likeness[0] > 0.8


def test_quality_prefers_varied_answers():
    varied = row(0, answer="Mix flour, water, salt and yeast, knead the dough and bake it until brown.")
    dull = row(0, answer="bread bread bread bread bread bread bread bread bread bread bread bread bread bread")
    assert quality(varied) > quality(dull) > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_similarity": 0.0}, "max_similarity = 0.0"),
        ({"min_answer_chars": 9, "max_answer_chars": 3}, "may not exceed"),
        ({"max_examples": 0}, "max_examples = 0; at least 1"),
    ],
)
def test_bad_settings_raise(values, message):
    with pytest.raises(UserError, match=message):
        CurationConfig(**values)
