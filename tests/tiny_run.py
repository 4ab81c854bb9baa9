"""A run folder with a corpus stage and a trained stage, small enough for tests of the later stages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_text_models import SAMPLE, byte_level_tokenizer
from transformers import AutoModelForCausalLM

import hf_pretrain.models  # noqa: F401
from hf_pretrain.corpus.contamination.index import BenchmarkItem, ContaminationIndex
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.scripts.recipe import StageSpec, load_stage
from hf_pretrain.utils.facts import Facts
from hf_pretrain.utils.manifest import StepManifest


QUESTIONS = [
    ("eggs/0", "How many minutes does an egg have to stay in boiling water until it is hard?", " Seven minutes."),
    ("eggs/1", "Which of the four seasons follows after the winter in the northern half of the earth?", " Spring."),
    ("eggs/2", "What do you mix with flour, salt and yeast to make the dough of a simple white bread?", " Water."),
]


def write_source(folder: Path, name: str, texts: list[str], tokenizer: Any) -> None:
    """Writes a token source in the shape of the corpus stage."""
    folder.mkdir(parents=True)
    documents = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    ends = np.cumsum([len(document) for document in documents]).astype("<u8")
    np.concatenate(documents).astype("<u2").tofile(folder / "00000.ds")
    ends.tofile(folder / "00000.ds.index")
    entry = {"name": "00000.ds", "num_tokens": int(ends[-1]), "num_documents": len(documents)}
    description = {
        "schema": 1,
        "name": name,
        "token_size": 2,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "num_tokens": int(ends[-1]),
        "num_documents": len(documents),
        "files": [entry],
    }
    (folder / "source.json").write_text(json.dumps(description))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def instruction_rows(count: int = 30) -> list[dict[str, Any]]:
    """Instruction rows with a few that must go."""
    rows = [
        {
            "prompt": f"How do I boil {number + 2} eggs in pot number {number}?",
            "completion": f"Put the {number + 2} eggs into boiling water and wait {number + 5} minutes; cool them.",
            "id": str(number),
            "source": "faq",
            "license": "MIT",
            "language": "en",
        }
        for number in range(count)
    ]
    planted = {"prompt": QUESTIONS[1][1], "completion": "It is spring that follows it then."}
    refusal = {"prompt": "Who are you then?", "completion": "As an AI language model I am."}
    return [*rows, {**rows[0], "id": "planted", **planted}, {**rows[1], "id": "refusal", **refusal}]


def make_run(run_dir: Path) -> Path:
    """Makes `1_corpus` and `2_pretrain` of a run."""
    tokenizer = byte_level_tokenizer()
    corpus = run_dir / "1_corpus"
    tokenizer.save_pretrained(corpus / "tokenizer")
    write_source(corpus / "tokens" / "validation" / "books", "books", SAMPLE, tokenizer)
    write_source(corpus / "tokens" / "validation" / "web", "web", [SAMPLE[0] * 12, SAMPLE[3]], tokenizer)
    rows = [{"item_id": name, "question": question, "answer": answer} for name, question, answer in QUESTIONS]
    write_jsonl(corpus / "benchmarks" / "eggs.jsonl", rows)
    found = {"schema": 1, "settings": {}, "benchmarks": {}, "items": [{"benchmark": "eggs", "item_id": "eggs/1"}]}
    (corpus / "contamination.json").write_text(json.dumps(found))
    items = [BenchmarkItem("eggs", name, "question", question) for name, question, _ in QUESTIONS]
    ContaminationIndex.build(items).save(corpus / "contamination_index")
    write_jsonl(corpus / "sft" / "faq.jsonl", instruction_rows())
    torch.manual_seed(5)
    config = StrataConfig.preset(
        "tiny-moe",
        vocab_size=len(tokenizer),
        hidden_size=32,
        head_dim=8,
        num_hidden_layers=2,
        moe_intermediate_size=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # "Trained": something else than what its seed gives.
        model.model.embed_tokens.weight.mul_(0.5)
    model.save_pretrained(run_dir / "2_pretrain" / "model")
    tokenizer.save_pretrained(run_dir / "2_pretrain" / "model")
    Facts(run_dir).record("recipe", {"name": "tiny", "stages": ["1_corpus", "2_pretrain", "5_sft", "6_evaluate"]})
    Facts(run_dir).record_stage("2_pretrain", "pretrain", {"seed": 5})
    for name in ("1_corpus", "2_pretrain"):
        StepManifest(run_dir / name / "stage.json", "0").finish(0.0)
    return run_dir


def stage_spec(run_dir: Path, name: str, text: str) -> StageSpec:
    """Reads a stage file that is written beside the run."""
    recipe = run_dir.parent / "recipe"
    recipe.mkdir(exist_ok=True)
    path = recipe / f"{name}.yaml"
    path.write_text(f"run_dir: {run_dir}\n{text}", encoding="utf-8")
    spec = load_stage(path)
    spec.stage_dir.mkdir(parents=True, exist_ok=True)
    return spec
