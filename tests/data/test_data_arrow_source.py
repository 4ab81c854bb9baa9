"""A `datasets.Dataset` as a source: the same windows, documents and provenance as shards of the same text."""

import pickle

import datasets
import numpy as np
import pytest
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


DOCUMENTS = random_documents(50, seed=3)


def table(documents=DOCUMENTS, **columns):
    rows = {"input_ids": documents, "url": [f"https://example.org/{i}" for i in range(len(documents))]}
    return datasets.Dataset.from_dict({**rows, **columns})


def same_as_shards(source, tmp_path, documents=DOCUMENTS):
    shards = TokenSource.open(write_token_folder(tmp_path / "shards", "web", documents))
    assert (source.num_tokens, source.num_documents) == (shards.num_tokens, shards.num_documents)
    for length in (7, 33):
        for index in range(source.num_windows(length)):
            mine, theirs = source.window(index, length), shards.window(index, length)
            assert mine[0].dtype == np.int64
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_mapped_dataset_reads_as_shards_do(tmp_path, batch):
    table().to_parquet(str(tmp_path / "x.parquet"), batch_size=batch)
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "c"))
    source = TokenSource.from_dataset(loaded["train"], "web", 64, 0)
    same_as_shards(source, tmp_path)
    start = sum(map(len, DOCUMENTS[:20]))
    spans = source.documents_of(start - 1, start + 2)
    assert [span.record["url"] for span in spans] == ["https://example.org/19", "https://example.org/20"]


def test_saved_dataset_opens_by_its_folder_and_survives_pickling(tmp_path):
    table().save_to_disk(str(tmp_path / "web"), num_shards=3)
    source = TokenSource.open(tmp_path / "web")
    assert source.name == "web"
    same_as_shards(pickle.loads(pickle.dumps(source)), tmp_path)
    assert len(pickle.dumps(source)) < 20_000


def test_selected_rows_are_read_in_their_order(tmp_path):
    order = list(range(49, -1, -2))
    source = TokenSource.from_dataset(table().select(order), "web", 64, 0)
    same_as_shards(source, tmp_path, [DOCUMENTS[index] for index in order])
    assert source.documents_of(0, 1)[0].record["url"] == "https://example.org/49"
    same_as_shards(TokenSource.from_dataset(table().select(range(10, 30)), "web"), tmp_path, DOCUMENTS[10:30])


def test_fixed_and_large_lists(tmp_path):
    rows = [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 0]]
    fixed = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"), length=4)})
    source = TokenSource.from_dataset(datasets.Dataset.from_dict({"input_ids": rows}, features=fixed), "a", 64, 0)
    assert source.tokens(2, 10).tolist() == [3, 0, 4, 5, 6, 0, 7, 8]
    assert source.document_starts(0, 12).tolist() == [0, 4, 8]
    large = datasets.Features({"input_ids": datasets.LargeList(datasets.Value("uint16"))})
    dataset = datasets.Dataset.from_dict({"input_ids": rows}, features=large)
    assert TokenSource.from_dataset(dataset, "a").tokens(0, 12).tolist() == sum(rows, [])


def test_rows_packed_by_trl_keep_their_documents():
    dataset = table([[1, 2, 0, 3, 0], [4, 0], [5, 6, 7, 0, 8, 0, 9, 0]], seq_lengths=[[3, 2], [2], [4, 2, 2]])
    source = TokenSource.from_dataset(dataset, "a", 64, 0)
    assert source.num_documents == 6
    assert source.document_starts(0, 15).tolist() == [0, 3, 5, 7, 11, 13]
    urls = [span.record["url"][-1] for span in source.documents_of(0, 15)]
    assert urls == ["0", "0", "1", "2", "2", "2"]
    wrong = table([[1, 2, 0]], seq_lengths=[[2]])
    with pytest.raises(UserError, match="seq_lengths does not sum to the length"):
        TokenSource.from_dataset(wrong, "a").document_starts(0, 3)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (datasets.Dataset.from_dict({"text": ["a"]}), r"columns \['text'\], none is 'input_ids'; tokenize it first"),
        (datasets.Dataset.from_dict({"input_ids": ["a"]}), "input_ids is of type string"),
        (datasets.Dataset.from_dict({"input_ids": [[1, 0], None]}), "1 rows have no input_ids"),
        (table([[1, 2]]), "ends with the id 2, not with the end-of-text id 0"),
    ],
)
def test_bad_datasets(dataset, message):
    with pytest.raises(UserError, match=message):
        TokenSource.from_dataset(dataset, "a", 64, 0)


def test_a_folder_of_several_splits_names_one(tmp_path):
    datasets.DatasetDict({"train": table()}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UserError, match="several splits; give the folder of one of them"):
        TokenSource.open(tmp_path / "d")
