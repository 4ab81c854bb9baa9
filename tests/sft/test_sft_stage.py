"""The SFT stage on our own mixture of experts: funnel, losses, resume, bad input."""

import json

import pytest
import torch
from tiny_run import make_run, stage_spec, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_pretrain.scripts import sft
from hf_pretrain.sft.checkpoints import is_complete, latest_checkpoint
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


STAGE = """
stage: sft
init_from: 2_pretrain
corpus: 1_corpus
curation: {max_examples: 20, near_duplicate_threshold: 1.0, max_similarity: 1.0}
validation_rows: 4
max_length: 128
packing: true
num_train_epochs: 4
per_device_train_batch_size: 2
learning_rate: 0.01
save_steps: 3
use_cpu: true
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("sft") / "run")
    sft.run(stage_spec(folder, "5_sft", STAGE))
    return folder


def facts_of(run_dir):
    return Facts(run_dir).load()["stages"]["5_sft"]


def test_facts_tell_the_whole_story(run_dir):
    facts = facts_of(run_dir)
    curation = facts["curation"]
    assert curation["rows"] == 32 == curation["kept"] + sum(curation["dropped"].values())
    assert curation["dropped"]["contaminated"] == 1 and curation["dropped"]["refusal"] == 1
    assert curation["kept"] == 20 and curation["licenses"] == {"MIT": 20}
    assert facts["data"]["rows"] == 16 and facts["validation_rows"] == 4
    assert facts["assistant_loss"]["train_after"] < facts["assistant_loss"]["train_before"] - 0.5
    assert facts["assistant_loss"]["validation_after"] < facts["assistant_loss"]["validation_before"]
    assert facts["tokens_trained"] == pytest.approx(4 * facts["data"]["tokens"], rel=0.01)
    assert facts["template"]["end_of_turn_token"] == "<|end|>"


def test_balance_of_the_experts_is_trained_and_said(run_dir):
    balance = facts_of(run_dir)["router_balance"]
    assert balance["active"] and balance["coefficient"] == 0.01
    # TRL's term is at least the number of experts a token uses.
    assert balance["first"] >= 2 - 1e-3


def test_saved_model_is_the_trained_one_with_its_own_settings(run_dir):
    before = AutoModelForCausalLM.from_pretrained(run_dir / "2_pretrain" / "model")
    after = AutoModelForCausalLM.from_pretrained(run_dir / "5_sft" / "model")
    assert after.config.output_router_logits is False
    assert after.config.router_aux_loss_coef == before.config.router_aux_loss_coef
    assert not torch.equal(after.lm_head.weight, before.lm_head.weight)
    assert after.lm_head.weight.data_ptr() == after.model.embed_tokens.weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "5_sft" / "model")
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert end in after.generation_config.eos_token_id
    assert not list((run_dir / "5_sft" / "model").glob("*.bin"))


def test_log_has_a_line_a_step(run_dir):
    lines = [json.loads(line) for line in (run_dir / "5_sft" / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, facts_of(run_dir)["steps"] + 1))


def test_resume_gives_the_same_model_and_passes_over_a_broken_checkpoint(run_dir):
    folder = run_dir / "5_sft"
    weights = (folder / "model" / "model.safetensors").read_bytes()
    first = facts_of(run_dir)
    latest = latest_checkpoint(folder / "checkpoints")
    assert latest is not None and is_complete(latest)
    # As after a kill: the newest checkpoint is half written.
    (latest / "optimizer.pt").write_bytes(b"")
    assert latest_checkpoint(folder / "checkpoints") != latest
    sft.run(stage_spec(run_dir, "5_sft", STAGE))
    assert (folder / "model" / "model.safetensors").read_bytes() == weights
    assert facts_of(run_dir)["assistant_loss"]["train_after"] == first["assistant_loss"]["train_after"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, first["steps"] + 1))


def test_balance_can_be_off(run_dir):
    text = STAGE.replace("num_train_epochs: 4", "max_steps: 1\nrouter_aux_loss_coef: 0.0")
    sft.run(stage_spec(run_dir, "8_off", text))
    balance = Facts(run_dir).load()["stages"]["8_off"]["router_balance"]
    assert not balance["active"] and balance["coefficient"] == 0.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("packing: true", "pakcing: true", "Unknown key 'pakcing'. Did you mean 'packing'"),
        ("learning_rate: 0.01", "learning_rate: true", "learning_rate = True"),
        ("max_examples: 20", "max_exampels: 20", "Did you mean 'max_examples'"),
        ("max_examples: 20", "max_examples: 0", "max_examples = 0"),
        ("init_from: 2_pretrain", "", "the key 'init_from' is missing"),
        ("packing: true", "lora: {r: 0}", "r = 0"),
        ("validation_rows: 4", "validation_rows: -1", "validation_rows = -1"),
    ],
)
def test_bad_files_are_refused_before_any_work(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        sft.check(stage_spec(tmp_path / "run", "5_sft", STAGE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("init_from: 2_pretrain", "init_from: 1_corpus", "holds no model"),
        ("corpus: 1_corpus", "corpus: 2_pretrain", "tokenizer is missing"),
        ("validation_rows: 4", "validation_rows: 500", "keep fewer rows out"),
        ("max_length: 128", "max_length: 4", "none is left"),
    ],
)
def test_missing_inputs_raise_one_line(run_dir, old, new, message):
    with pytest.raises(UserError, match=message):
        sft.run(stage_spec(run_dir, "9_bad", STAGE.replace(old, new)))


def test_broken_rows_raise_with_their_line(run_dir):
    path = run_dir.parent / "rows.jsonl"
    write_jsonl(path, [{"prompt": "a", "completion": "b"}])
    path.write_text(path.read_text() + "{broken\n")
    with pytest.raises(UserError, match="rows.jsonl:2 is no JSON"):
        sft.run(stage_spec(run_dir, "9_bad", f"{STAGE}\ndata: {path}\n"))
