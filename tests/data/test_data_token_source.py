import json
import pickle

import numpy as np
import pytest
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data import shards
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


@pytest.fixture
def documents():
    return random_documents(23, vocab_size=64, seed=3)


def flat(documents):
    return [token for document in documents for token in document]


@pytest.mark.parametrize("per_file", [None, 1, 5])
def test_windows_and_documents_agree_with_the_text(tmp_path, documents, per_file):
    source = TokenSource.open(write_token_folder(tmp_path / "web", "web", documents, documents_per_file=per_file))
    tokens = flat(documents)
    starts = np.cumsum([0] + [len(document) for document in documents])
    assert (source.name, source.num_tokens, source.num_documents) == ("web", len(tokens), len(documents))
    assert (source.vocab_size, source.eos_token_id) == (64, 0)
    for length in (4, 17, 64):
        assert source.num_windows(length) == len(tokens) // length
        for index in range(source.num_windows(length)):
            low, high = index * length, (index + 1) * length
            window, offsets = source.window(index, length)
            assert window.dtype == np.int64
            assert window.tolist() == tokens[low:high]
            assert offsets.tolist() == [start - low for start in starts if low <= start < high]
            spans = source.documents_of(low, high)
            assert [span.start for span in spans] == [low] + [span.stop for span in spans[:-1]]
            assert spans[-1].stop == high
            for span in spans:
                assert starts[span.document_index] == span.document_start <= span.start
                assert span.stop <= starts[span.document_index + 1]
                assert span.record["url"] == f"https://example.org/web/{span.document_index}"


def test_documents_without_tokens_are_skipped():
    source = TokenSource.from_arrays("a", [5, 6, 7, 8], [0, 2, 2, 4, 4])
    assert source.window(0, 4)[1].tolist() == [0, 2]
    assert [(span.document_index, span.start, span.stop) for span in source.documents_of(0, 4)] == [
        (1, 0, 2),
        (3, 2, 4),
    ]


def test_sizes_of_token_ids_round_trip_exactly(tmp_path):
    # B5: ids wrap at 65536 where the file says 2 bytes.
    ids = [0, 65535, 65536, 131071]
    source = TokenSource.open(
        write_token_folder(tmp_path / "a", "a", [ids], vocab_size=131072, token_size=4, eos_token_id=131071)
    )
    assert source.tokens(0, 4).tolist() == ids
    two = TokenSource.open(write_token_folder(tmp_path / "b", "b", [[0, 65535]], vocab_size=65536, eos_token_id=65535))
    assert two.tokens(0, 2).tolist() == [0, 65535]


def edit(folder, **changes):
    path = folder / "source.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_reading_four_bytes_as_two_is_an_error(tmp_path):
    folder = write_token_folder(tmp_path / "a", "a", [[0, 65535, 65536, 131071]], vocab_size=131072, token_size=4)
    edit(folder, token_size=2)
    with pytest.raises(UserError, match="vocab_size = 131072 does not fit tokens of 2 bytes"):
        TokenSource.open(folder)
    edit(folder, vocab_size=65536)
    with pytest.raises(UserError, match="ends at token 4, but 00000.ds holds 8 tokens"):
        TokenSource.open(folder)


def test_index_and_tokens_must_agree(tmp_path, documents):
    # B8: the last document end is the number of tokens, checked when the source is opened.
    folder = write_token_folder(tmp_path / "a", "a", documents)
    shard = folder / "00000.ds"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match="the two files do not belong together"):
        TokenSource.open(folder)
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match="no multiple of 2; the file was cut off"):
        TokenSource.open(folder)
    shard.unlink()
    with pytest.raises(UserError, match="no such file"):
        TokenSource.open(folder)


def test_a_damaged_index_or_shard_is_found_where_it_is_read(tmp_path, documents, monkeypatch):
    folder = write_token_folder(tmp_path / "a", "a", documents)
    index = folder / "00000.ds.index"
    whole = index.read_bytes()
    ends = np.frombuffer(whole, "<u8").copy()
    ends[3] = ends[-1] + 5
    index.write_bytes(ends.tobytes())
    with pytest.raises(UserError, match="00000.ds.index: the document ends do not rise"):
        TokenSource.open(folder).window(0, 16)
    # In an index too large to be looked through, rows are checked as they are read.
    monkeypatch.setattr(shards, "_SMALL_INDEX", 0)
    with pytest.raises(UserError, match="document ends do not rise"):
        source = TokenSource.open(folder)
        schedule = MixtureSchedule.from_weights({"a": 1.0}, source.num_windows(16))
        list(MixtureDataset([source], schedule, 16).__getitems__(range(schedule.num_samples)))
    index.write_bytes(whole)
    shard = folder / "00000.ds"
    tokens = np.frombuffer(shard.read_bytes(), "<u2").copy()
    tokens[20] = 64
    shard.write_bytes(tokens.tobytes())
    source = TokenSource.open(folder)
    assert len(source.window(0, 16)[0]) == 16
    with pytest.raises(UserError, match=r"tokens \[16, 32\) hold the id 64, its vocabulary has 64"):
        source.window(1, 16)


def test_source_file_must_be_whole(tmp_path, documents):
    with pytest.raises(UserError, match="no source.json"):
        TokenSource.open(tmp_path)
    folder = write_token_folder(tmp_path / "a", "a", documents)
    edit(folder, num_tokens=7)
    with pytest.raises(UserError, match="num_tokens = 7"):
        TokenSource.open(folder)
    (folder / "source.json").write_text('{"name": ')
    with pytest.raises(UserError, match="no valid JSON"):
        TokenSource.open(folder)
    (folder / "source.json").write_text('{"name": "a"}')
    with pytest.raises(UserError, match="the fields files, num_documents, num_tokens"):
        TokenSource.open(folder)


def test_provenance_of_other_tokens_is_refused(tmp_path, documents):
    folder = write_token_folder(tmp_path / "a", "a", documents)
    index = folder / "00000.ds.docs.index"
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(UserError, match="22 lines for 23 documents"):
        TokenSource.open(folder).documents_of(0, 4)


def test_arrays_are_checked():
    with pytest.raises(UserError, match="ends at 3, but there are 4 tokens"):
        TokenSource.from_arrays("a", [1, 2, 3, 4], [3])
    with pytest.raises(UserError, match="must rise"):
        TokenSource.from_arrays("a", [1, 2, 3, 4], [3, 2, 4])
    with pytest.raises(IndexError, match="which holds 4"):
        TokenSource.from_arrays("a", [1, 2, 3, 4], [4]).window(1, 3)


def test_pickling_maps_the_files_again_and_copies_nothing(tmp_path):
    source = TokenSource.open(write_token_folder(tmp_path / "a", "a", random_documents(2000, seed=1)))
    state = pickle.dumps(source)
    assert len(state) < 4000 < source.num_tokens
    assert pickle.loads(state).tokens(100, 200).tolist() == source.tokens(100, 200).tolist()


def test_an_index_shifted_by_one_token_is_found_at_the_open(tmp_path):
    documents = random_documents(40)
    folder = write_token_folder(tmp_path / "a", "a", documents)
    ends = np.cumsum([len(document) for document in documents]).astype("<u8")
    ends[:-1] += 1
    (folder / "00000.ds.index").write_bytes(ends.tobytes())
    with pytest.raises(UserError, match="the index is shifted, or of another tokenizer"):
        TokenSource.open(folder)


def test_a_huge_index_is_neither_read_nor_copied(tmp_path):
    # 4 * 10^6 documents of 50 tokens: a look-up that compares the uint64 index with a Python int copies it.
    import tracemalloc

    from hf_pretrain.data.shards import FileShard

    count = 4 * 10**6
    path = tmp_path / "index"
    with open(path, "wb") as stream:
        for start in range(0, count, 10**6):
            stream.write(np.arange(50 * (start + 1), 50 * (start + 10**6) + 1, 50, dtype="<u8").tobytes())
    ends = np.memmap(path, dtype="<u8", mode="r")
    tokens = np.broadcast_to(np.zeros(1, dtype="<u2"), (50 * count,))
    source = TokenSource("a", [FileShard(tokens, ends)], 64)
    tracemalloc.start()
    low = 177_777_777
    starts = source.document_starts(low, low + 1000)
    assert starts.tolist() == list(range(-(-low // 50) * 50, low + 1000, 50))
    assert source.documents_of(low, low + 10)[0].document_index == low // 50
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
