"""The card: a header the Hub takes, no number without a fact, no text that breaks out."""

import copy
import re

import pytest
import yaml
from run_fixture import facts

from hf_pretrain.hub.model_card import (
    card_header,
    check_card,
    license_file,
    numbers_not_in_facts,
    render_card,
    source_licenses,
)
from hf_pretrain.utils.errors import UserError


def header_of(text):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---", text, re.DOTALL).group(1))


def test_every_number_of_the_card_is_a_fact():
    assert numbers_not_in_facts(render_card(facts()), facts()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("3.310", "3.311"), ("2.10M", "2.11M"), ("3,664", "3,665"), ("6:53", "6:54"), ("11.0 MB", "11.1 MB")],
)
def test_a_changed_number_is_found(old, new):
    card = render_card(facts())
    assert old in card
    assert new in numbers_not_in_facts(card.replace(old, new), facts())


def test_rewinds_are_told():
    assert "back to step 60, samples 3840 to 3967 left out, learning rate times 0.5" in render_card(facts())


def test_numbers_are_read_as_people_write_them():
    known = {"a": 0.25, "b": 1234567, "c": 187.4, "d": "torch 2.13.0", "e": [2e-5], "f": -1.5, "g": True}
    text = "25%, 1.23M, 1,234,567, 3:07, 2.13.0, 2e-05, -1.5, 187.4 and 187; B2B, x86_64, 4_long, word-9"
    assert numbers_not_in_facts(text, known) == []
    assert numbers_not_in_facts("26%, 1, 1.24M, 3:08, 1.5", known) == ["26%", "1", "1.24M", "3:08", "1.5"]


def test_header_is_valid_metadata():
    header = header_of(render_card(facts()))
    assert header["library_name"] == "transformers" and header["pipeline_tag"] == "text-generation"
    assert header["language"] == ["en", "fr"]
    assert header["license"] == "other" and header["license_link"] == "LICENSE.md"
    assert "moe" in header["tags"] and "datasets" not in header and "base_model" not in header
    from huggingface_hub import ModelCardData

    assert ModelCardData(**header).to_dict() == header


def test_one_known_licence_is_the_models():
    content = facts()
    for source in content["stages"]["1_corpus"]["sources"].values():
        source["licenses"] = ["MIT"]
    content["stages"]["5_sft"]["curation"]["licenses"] = {"MIT": 216}
    assert card_header(content)["license"] == "mit"
    content["stages"]["1_corpus"]["sources"]["web"]["licenses"] = []
    assert source_licenses(content) == ["MIT", "unknown"]
    assert card_header(content)["license"] == "other"
    content["stages"]["7_push"]["license"] = "apache-2.0"
    assert card_header(content)["license"] == "apache-2.0"


def test_licence_file_names_every_source():
    text = license_file(facts())
    assert "| encyclopedic | CC-BY-SA-4.0 |" in text and "| instruction rows | BSD-3-Clause |" in text


def test_a_local_base_model_stays_out_of_the_header():
    content = facts()
    content["stages"]["2_pretrain"]["base_model"] = "/data/models/mine"
    assert "base_model" not in card_header(content)
    content["stages"]["2_pretrain"]["base_model"] = "org/name"
    assert card_header(content)["base_model"] == "org/name"
    assert "from scratch" not in render_card(content)


@pytest.mark.parametrize("kept", range(8))
def test_partial_runs_have_cards(kept):
    content = facts()
    names = content["recipe"]["stages"][:kept]
    content["stages"] = {name: content["stages"][name] for name in names}
    card = render_card(content)
    assert numbers_not_in_facts(card, content) == []
    assert "None" not in card and "{{" not in card and "nan" not in card.lower().split()


def test_nothing_recorded_is_no_error():
    assert "nothing is recorded" in render_card({"schema": 1, "stages": {}})


def test_text_from_the_run_cannot_break_the_card():
    content = copy.deepcopy(facts())
    content["stages"]["7_push"]["reload"]["text"] = "a | b\n---\nlicense: mit\n<script>alert(1)</script>"
    content["stages"]["7_push"]["reload"]["prompt"] = 'say "hi" {{ 7 * 7 }}'
    content["recipe"]["name"] = "x\n---\nlicense: mit"
    card = render_card(content)
    assert header_of(card)["license"] == "other"
    assert "<script>" not in card and "{{ 7 * 7 }}" in card
    assert 'content": "say \\"hi\\"' in card


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("license: mit\ndatasets:\n- null", r"datasets\[0\] = None"),
        ("license: mit\nvalue: .nan", r"value = nan"),
        ("license: mit\nname:", r"name = None"),
        ("license: free", r"license = free; it is no licence id"),
        ("license: other", r"license_name and license_link"),
        ("license: mit\nbase_model: ./runs/x/model", r"base_model = ./runs/x/model"),
        ("license: [", r"no YAML"),
        ("- a", r"no mapping"),
    ],
)
def test_headers_that_the_hub_refuses_are_refused(header, message):
    with pytest.raises(UserError, match=message):
        check_card(f"---\n{header}\n---\n\n# x\n")


def test_a_card_without_header_is_refused():
    with pytest.raises(UserError, match="no YAML header"):
        check_card("# x\n")
