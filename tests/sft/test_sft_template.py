"""Masks are judged by rendering: bugs T1 to T4 of the public record."""

import pytest
from tiny_text_models import CHAT_TEMPLATE, byte_level_tokenizer

from hf_pretrain.sft.template import IGNORE_INDEX, check_template, encode, render, spans
from hf_pretrain.utils.errors import UserError


TWO_TURNS = [
    {"role": "user", "content": "How do I boil an egg?"},
    {"role": "assistant", "content": "Put it into boiling water."},
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "wait seven minutes."},
]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


def test_a_good_template_passes_and_names_its_end_of_turn(tokenizer):
    report = check_template(tokenizer)
    assert report.end_of_turn_token == "<|end|>"
    assert 0 < report.probe_trained_tokens < report.probe_tokens


def test_both_assistant_turns_are_trained_and_end_with_the_end_of_turn(tokenizer):
    ids, mask = render(tokenizer, TWO_TURNS)
    found = spans(mask)
    texts = [tokenizer.decode(ids[start:stop]) for start, stop in found]
    assert texts == ["Put it into boiling water.<|end|>", "wait seven minutes.<|end|>"]


def template_variants():
    plain = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    end_outside = CHAT_TEMPLATE.replace(
        "{{ message['content'] + '<|end|>' }}{% endgeneration %}", "{{ message['content'] }}{% endgeneration %}<|end|>"
    )
    last_only = CHAT_TEMPLATE.replace(
        "{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' and loop.last %}"
    )
    header_inside = CHAT_TEMPLATE.replace(
        "{{ '<|' + message['role'] + '|>' }}{% if message['role'] == 'assistant' %}{% generation %}",
        "{% if message['role'] != 'assistant' %}{{ '<|' + message['role'] + '|>' }}{% endif %}"
        "{% if message['role'] == 'assistant' %}{% generation %}{{ '<|assistant|>' }}",
    )
    other_prompt = CHAT_TEMPLATE.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|>\n' }}")
    return [
        (None, "has no chat template"),
        (plain, "has no {% generation %} markers"),
        (end_outside, "leaves the end-of-turn token outside"),
        (last_only, "marks 1 assistant spans in a conversation with 2 answers"),
        (header_inside, "nothing else"),
        (other_prompt, "renders the prompt differently for generation"),
    ]


@pytest.mark.parametrize(("template", "message"), template_variants())
def test_bad_templates_are_refused(template, message):
    with pytest.raises(UserError, match=message.replace("{", r"\{").replace("}", r"\}")):
        check_template(byte_level_tokenizer(chat_template=template))


def test_two_bos_tokens_are_refused():
    tokenizer = byte_level_tokenizer(chat_template="<|eos|><|eos|>" + CHAT_TEMPLATE)
    tokenizer.bos_token = "<|eos|>"
    with pytest.raises(UserError, match="puts 2 BOS tokens"):
        check_template(tokenizer)


def test_labels_are_the_ids_of_the_assistant(tokenizer):
    row = encode(tokenizer, TWO_TURNS, 512)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    trained = [label for label in row.labels if label != IGNORE_INDEX]
    assert tokenizer.decode(trained) == "Put it into boiling water.<|end|>wait seven minutes.<|end|>"
    assert row.labels[-1] == end
    assert (row.num_turns, row.lost_tokens, row.lost_turns) == (2, 0, 0)
    assert row.num_trained_tokens == len(trained)


def test_too_long_rows_are_cut_at_a_turn_border_and_counted(tokenizer):
    whole = encode(tokenizer, TWO_TURNS, 512)
    first = encode(tokenizer, TWO_TURNS[:2], 512)
    cut = encode(tokenizer, TWO_TURNS, len(whole.input_ids) - 1)
    assert cut.input_ids == first.input_ids
    assert cut.labels[-1] == tokenizer.convert_tokens_to_ids("<|end|>")
    assert (cut.num_turns, cut.lost_turns) == (1, 1)
    assert cut.lost_tokens == len(whole.input_ids) - len(first.input_ids)


def test_a_row_whose_first_answer_does_not_fit_is_dropped(tokenizer):
    shortest = len(encode(tokenizer, TWO_TURNS[:2], 512).input_ids)
    assert encode(tokenizer, TWO_TURNS, shortest - 1) is None
    assert encode(tokenizer, TWO_TURNS, shortest).num_turns == 1


def test_spans_of_a_mask():
    assert spans([0, 1, 1, 0, 1]) == [(1, 3), (4, 5)]
    assert spans([]) == []
