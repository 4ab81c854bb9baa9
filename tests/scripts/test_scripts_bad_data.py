"""Data that cannot be trained on: one clear line and exit code 2 before the first step."""

import json
import shutil

import numpy as np
import pytest
from test_scripts_pretrain import MODEL, write_recipe
from testing_utils import write_token_folder

from hf_pretrain.scripts import pretrain


def phased(*phases):
    return {"phases": [{"name": f"p{number}", **phase} for number, phase in enumerate(phases)]}


def empty_source(corpus):
    shutil.rmtree(corpus / "tokens" / "train" / "books")
    write_token_folder(corpus / "tokens" / "train" / "books", "books", [])


def short_source(corpus):
    shutil.rmtree(corpus / "tokens" / "train" / "books")
    write_token_folder(corpus / "tokens" / "train" / "books", "books", [[1, 2, 3, 0]])


def shifted_index(corpus):
    path = corpus / "tokens" / "train" / "books" / "00000.ds.index"
    ends = np.fromfile(path, "<u8")
    ends[:-1] -= 1
    ends.tofile(path)


def large_vocabulary(corpus):
    path = corpus / "tokens" / "train" / "books" / "source.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 70_000}))


def same_name(corpus):
    path = corpus / "tokens" / "train" / "books" / "source.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "web"}))


WEB = {"web": 1.0}
CASES = {
    "no token": ({}, empty_source, "source 'books' holds no full window of 32 tokens"),
    "less than a window": ({}, short_source, "source 'books' holds no full window of 32 tokens"),
    "weights of zero": ({"mixture": {"web": 0.0}}, None, "all weights are 0"),
    "negative weight": ({"mixture": {"web": 1.0, "books": -0.1}}, None, "weights.books = -0.1"),
    "weight that is no number": ({"mixture": {"web": float("nan")}}, None, "weights.web = nan"),
    "unknown source": ({"mixture": {"wbe": 1.0}}, None, "Unknown source 'wbe'. Did you mean 'web'"),
    "cap too low": ({"mixture": WEB, "train_tokens": 400 * 256}, None, "tokens too many of 102,400; lower its weight"),
    "no room at all": (
        {"mixture": WEB, "train_tokens": 400 * 256, "on_excess": "redistribute"},
        None,
        "tokens over and no other source of its phase has room; all sources together give",
    ),
    "too large a vocabulary": ({}, large_vocabulary, "vocab_size = 70000 does not fit tokens of 2 bytes"),
    "index off by one": ({}, shifted_index, "the index is shifted, or of another tokenizer"),
    "two of one name": ({}, same_name, "two sources are called 'web'"),
    "phase beyond the end": (
        {"mixture": phased({"weights": WEB, "samples": 20}, {"weights": WEB, "samples": 20})},
        None,
        "covers samples 20 to 40, beyond the end of the run, which has 32",
    ),
    "phases with a gap": (
        {"mixture": phased({"weights": WEB, "samples": 10}, {"weights": WEB, "samples": 10})},
        None,
        "phases cover 20 of the run's 32 samples",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_before_the_first_step(tmp_path, capsys, case):
    changes, damage, message = CASES[case]
    base = {"model": MODEL, "mixture": {"web": 0.5, "books": 0.5}, "train_tokens": 4 * 256}
    run, (path,) = write_recipe(tmp_path, s2_pretrain={**base, **changes})
    if damage is not None:
        damage(run / "1_corpus")
    assert pretrain.main(["--config", path]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (run / "2_pretrain" / "log.jsonl").exists() and not (run / "2_pretrain" / "checkpoints").exists()


def test_shards_that_changed_since_the_run_began(tmp_path, capsys):
    config = {"model": MODEL, "mixture": {"web": 1.0}, "train_tokens": 4 * 256, "save_steps": 2}
    run, (path,) = write_recipe(tmp_path, s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 0
    shutil.rmtree(run / "2_pretrain" / "checkpoints" / "checkpoint-4")
    (run / "2_pretrain" / "stage.json").unlink(missing_ok=True)
    shard = run / "1_corpus" / "tokens" / "train" / "web" / "00000.ds"
    tokens = np.fromfile(shard, "<u2")
    tokens[7] = tokens[7] % 60 + 1  # of the same size, and source.json says nothing of it
    tokens.tofile(shard)
    capsys.readouterr()
    assert pretrain.main(["--config", path]) == 2
    assert "source 'web' changed since the run began" in capsys.readouterr().err
