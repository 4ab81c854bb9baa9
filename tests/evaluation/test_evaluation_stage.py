"""The evaluate stage: every model, every source, clean and contaminated."""

import json
import time

import pytest
from tiny_run import make_run, stage_spec

from hf_pretrain.scripts import evaluate
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


STAGE = """
stage: evaluate
corpus: 1_corpus
models: [untrained, 2_pretrain]
context_length: 64
max_tokens_per_source: 400
bootstrap_resamples: 50
long_context: {models: [2_pretrain], context_lengths: [16, 64], edges: [1, 32, 64]}
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("evaluate") / "run")
    begin = time.monotonic()
    evaluate.run(stage_spec(folder, "6_evaluate", STAGE))
    assert time.monotonic() - begin < 20
    return folder


def test_facts_and_file_agree(run_dir):
    facts = Facts(run_dir).load()["stages"]["6_evaluate"]
    assert facts.pop("kind") == "evaluate"
    assert json.loads((run_dir / "6_evaluate" / "evaluation.json").read_text()) == facts


def test_every_model_and_source_has_a_score(run_dir):
    facts = Facts(run_dir).load()["stages"]["6_evaluate"]
    assert list(facts["bits_per_byte"]) == ["untrained", "2_pretrain"]
    for scores in facts["bits_per_byte"].values():
        assert set(scores) == {"books", "web", "all"}
        low, high = sorted((scores["books"], scores["web"]))
        assert low <= scores["all"] <= high
    sizes = facts["scored"]
    assert sizes["all"]["bytes"] == sizes["books"]["bytes"] + sizes["web"]["bytes"]
    assert "windows of 64 tokens" in facts["convention"]


def test_untrained_is_the_start_of_the_stage_with_its_seed(run_dir):
    import torch
    from transformers import AutoModelForCausalLM

    spec = stage_spec(run_dir, "6_evaluate", STAGE)
    start = evaluate._load_model(spec, "untrained", "2_pretrain")
    trained = AutoModelForCausalLM.from_pretrained(run_dir / "2_pretrain" / "model")
    assert torch.equal(start.model.embed_tokens.weight * 0.5, trained.model.embed_tokens.weight)
    assert torch.equal(start.model.layers[1].mlp.experts.down_proj, trained.model.layers[1].mlp.experts.down_proj)


def test_contaminated_items_are_told_apart(run_dir):
    groups = Facts(run_dir).load()["stages"]["6_evaluate"]["benchmarks"]["eggs"]["2_pretrain"]
    assert [groups[name]["items"] for name in ("all", "clean", "contaminated")] == [3, 2, 1]
    assert groups["clean"]["low"] <= groups["clean"]["bits_per_byte"] <= groups["clean"]["high"]


def test_position_scores_exist_for_each_context(run_dir):
    context = Facts(run_dir).load()["stages"]["6_evaluate"]["long_context"]
    assert context["documents"] == 1
    scores = context["bits_per_byte"]["2_pretrain"]
    assert set(scores) == {"16", "64"} and all(len(values) == 2 for values in scores.values())


def test_items_under_another_id_are_an_error_not_clean(run_dir):
    with pytest.raises(UserError, match="names the item 'eggs/1'"):
        evaluate.run(stage_spec(run_dir, "9_bad", STAGE + "id_key: question\n"))


@pytest.mark.parametrize("content", ['{"items": [', "{}", '{"items": [3]}'])
def test_a_damaged_contamination_report_is_an_error_not_clean(run_dir, content):
    report = run_dir / "1_corpus" / "contamination.json"
    whole = report.read_text()
    report.write_text(content)
    try:
        with pytest.raises(UserError, match="contamination.json is damaged"):
            evaluate.run(stage_spec(run_dir, "9_bad", STAGE))
    finally:
        report.write_text(whole)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("context_length: 64", "context_lenght: 64", "Did you mean 'context_length'"),
        ("context_length: 64", "context_length: 1", "at least 2"),
        ("models: [untrained, 2_pretrain]", "models: []", "name at least one"),
        ("models: [untrained, 2_pretrain]", "models: [untrained]", "needs untrained_from"),
        ("models: [untrained, 2_pretrain]", "models: [2_pretrain, 2_pretrain]", "may stand there once"),
        ("edges: [1, 32, 64]", "edges: [64, 32]", "rising"),
        ("max_tokens_per_source: 400", "max_tokens_per_source: true", "a whole number is expected"),
    ],
)
def test_bad_files_are_refused_before_any_work(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        evaluate.check(stage_spec(tmp_path / "run", "6_evaluate", STAGE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2_pretrain]\ncontext", "1_corpus]\ncontext", "holds no model"),
        ("corpus: 1_corpus", "corpus: 2_pretrain", "tokenizer is missing"),
    ],
)
def test_missing_inputs_raise_one_line(run_dir, old, new, message):
    with pytest.raises(UserError, match=message):
        evaluate.run(stage_spec(run_dir, "9_bad", STAGE.replace(old, new)))
