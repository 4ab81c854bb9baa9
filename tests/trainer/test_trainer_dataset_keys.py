"""`datasets` as TRL writes it, the alignment handbook's names, and what is wrong with either."""

import logging

import datasets
import pytest
from test_trainer_stage_options import check
from testing_utils import markov_documents, random_documents, write_token_folder
from tiny_training import memory_source

from hf_pretrain.trainer.dataset_keys import DatasetEntry, open_entry
from hf_pretrain.trainer.stage_run import make_mixture
from hf_pretrain.utils.errors import UserError


TRL = [{"path": "1_corpus", "name": "web", "weight": 0.7}, {"path": "data/code", "weight": 0.3, "max_epochs": 2}]


class Tokenizer:
    eos_token_id = 0

    def __len__(self):
        return 64


def test_trl_and_handbook_names_mean_the_same():
    options, args = check(datasets=TRL)
    assert options.mixture == {"web": 0.7, "code": 0.3}
    assert args.max_epochs == {"web": 4.0, "code": 2.0}
    assert options.datasets[1] == DatasetEntry("data/code", None, "train", 0.3, 2.0)
    handbook = [{"id": "1_corpus", "config": "web", "weight": 0.7}, {"id": "data/code", "fraction": 0.3}]
    for same in (
        {"dataset_mixture": {"datasets": handbook}},
        {"datasets": [{"path": "1_corpus", "name": "web"}, "data/code"], "dataset_weights": [0.7, 0.3]},
        {"datasets": ["1_corpus", "data/code"], "dataset_configs": ["web", None], "dataset_weights": [0.7, 0.3]},
    ):
        assert check(**same)[0].mixture == {"web": 0.7, "code": 0.3}
    assert check(dataset_mixer={"data/web": 0.7, "data/code": 0.3})[0].mixture == {"web": 0.7, "code": 0.3}
    by_name = {"web": 0.7, "data/code": 0.3}
    assert check(datasets=[{"path": "x", "name": "web"}, "data/code"], dataset_weights=by_name)[0].mixture
    phases = {"phases": [{"weights": {"web": 1.0}}]}
    free = [{"path": "1_corpus", "name": "web"}]
    assert check(datasets=free, mixture=phases)[0].mixture == phases
    assert check(datasets=free)[0].mixture is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": TRL}, "Unknown key 'dataset'. Did you mean 'datasets'"),
        ({"datasets": [{"path": "x", "wieght": 1}]}, r"datasets\[0\]: Unknown key 'wieght'. Did you mean 'weight'"),
        ({"datasets": [{"name": "x"}]}, r"datasets\[0\]: the key 'path' is missing"),
        ({"datasets": [{"path": "x", "weight": "much"}]}, r"datasets\[0\]: weight = 'much'; a number"),
        ({"datasets": {}}, "datasets = {}; a list"),
        ({"datasets": ["x", "y/x"]}, "two sources are called 'x'"),
        ({"datasets": [{"path": "x", "weight": 1.0}, "y"]}, "'y' has no weight and others have"),
        ({"datasets": TRL, "mixture": {"web": 1.0}}, "mixture and the weights of datasets both give shares"),
        ({"datasets": TRL, "max_epochs": {"web": 2}}, "max_epochs by source and max_epochs of datasets"),
        ({"datasets": TRL, "dataset_mixer": {"x": 1.0}}, "datasets and dataset_mixer both name the datasets"),
        ({"datasets": [{"path": "x", "id": "y"}]}, "id and path mean the same"),
        ({"datasets": [{"path": "x", "max_epochs": 0}]}, r"datasets\[0\].max_epochs = 0"),
        ({"datasets": ["x", "y"], "dataset_weights": [1.0]}, "a list of 2 values is expected"),
        ({"datasets": ["x", "y"], "dataset_weights": {"z": 1.0}}, "Unknown dataset 'z'"),
        ({"dataset_weights": [1.0]}, "dataset_weights needs `datasets`"),
        ({"datasets": [{"path": "x", "weight": 0.0}]}, "all weights are 0"),
        ({"datasets": [{"path": "x", "weight": float("nan")}]}, "weight"),
        ({"dataset_mixture": {"dataset": []}}, "Unknown key 'dataset'. Did you mean 'datasets'"),
    ],
)
def test_bad_entries_name_file_and_key(changes, message):
    with pytest.raises(UserError, match=message):
        check(**changes)


def test_sources_are_found_wherever_they_lie(tmp_path):
    texts = random_documents(30, vocab_size=64, seed=1)
    write_token_folder(tmp_path / "corpus" / "tokens" / "train" / "web", "web", texts)
    rows = [text if text[-1] == 0 else [*text, 0] for text in markov_documents(20, 64, 2)]
    saved = datasets.Dataset.from_dict({"input_ids": rows})
    saved.save_to_disk(str(tmp_path / "code"))
    datasets.DatasetDict({"train": saved, "test": saved.select(range(4))}).save_to_disk(str(tmp_path / "both"))
    arrow = next((tmp_path / "code").glob("*.arrow"))
    tokenizer = Tokenizer()
    held = sum(map(len, rows))
    assert open_entry(DatasetEntry(str(tmp_path / "corpus"), "web"), tokenizer).num_documents == 30
    single = open_entry(DatasetEntry(str(tmp_path / "corpus" / "tokens" / "train" / "web")), tokenizer)
    assert (single.name, single.vocab_size) == ("web", 64)
    for entry in (
        DatasetEntry(str(tmp_path / "code")),
        DatasetEntry(str(tmp_path / "both"), "code"),
        DatasetEntry(str(arrow), "code"),
    ):
        source = open_entry(entry, tokenizer)
        assert (source.name, source.num_tokens, source.vocab_size) == ("code", held, 64)
    assert open_entry(DatasetEntry(str(tmp_path / "both"), split="test"), tokenizer).num_documents == 4
    for entry, message in (
        (DatasetEntry(str(tmp_path / "corpus")), r"holds several sources \(web\); give a `name`"),
        (DatasetEntry(str(tmp_path / "corpus"), "wbe"), "Unknown source 'wbe'. Did you mean 'web'"),
        (DatasetEntry(str(tmp_path / "both"), split="tain"), "Unknown split 'tain'. Did you mean 'train'"),
        (DatasetEntry("org/name"), "there is no such stage, folder or file. A dataset of the Hub has to be"),
    ):
        with pytest.raises(UserError, match=message):
            open_entry(entry, tokenizer)
    open_ended = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6]]})
    open_ended.save_to_disk(str(tmp_path / "open"))
    with pytest.raises(UserError, match="ends with the id 3, not with the end-of-text id 0"):
        open_entry(DatasetEntry(str(tmp_path / "open")), tokenizer)


def test_weights_that_do_not_sum_to_one_are_said_and_caps_of_other_sources_wait(caplog):
    sources = [memory_source(name, 80, number) for number, name in enumerate("abc")]
    options, args = check(mixture={"a": 3.0, "b": 1.0}, max_epochs={"a": 50, "c": 1})
    with caplog.at_level(logging.WARNING, "hf_pretrain"):
        dataset = make_mixture(options, args, sources)
    assert "the weights of phase stable sum to 4; shares are taken of that sum" in caplog.text
    assert dataset.schedule.shares() == {"a": 0.75, "b": 0.25}
    options, args = check(mixture={"a": 1.0}, max_epochs={"aa": 50})
    with pytest.raises(UserError, match="max_epochs: Unknown source 'aa'"):
        make_mixture(options, args, sources)
    caplog.clear()
    options, args = check(mixture={"a": 0.1, "b": 0.2, "c": 0.7})
    make_mixture(options, args, sources)
    assert "sum to" not in caplog.text
