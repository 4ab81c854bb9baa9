"""Deduplication: closed forms, the public faults D1 to D5 and D8, and the datatrove blocks."""

import random
import tracemalloc

import numpy as np
import pytest
from datatrove.data import Document

from hf_pretrain.corpus.dedup.exact import find_exact_duplicates, survivor_order, text_key
from hf_pretrain.corpus.dedup.minhash import (
    MinhashConfig,
    MinhashSigner,
    bucket_keys_of_texts,
    collision_probability,
)
from hf_pretrain.corpus.dedup.pairs import read_pairs
from hf_pretrain.corpus.dedup.shingles import jaccard, shingle_arrays, shingle_set
from hf_pretrain.corpus.dedup.steps import ExactDeduplication, NearDuplicateRemoval
from hf_pretrain.corpus.dedup.verified_clusters import find_near_duplicates
from hf_pretrain.utils.errors import UserError


def kept(texts: list[str], **settings) -> list[int]:
    config = MinhashConfig(**settings)
    removed = {pair.removed for pair in find_near_duplicates(texts, range(len(texts)), config)}
    return [index for index in range(len(texts)) if index not in removed]


@pytest.mark.parametrize(
    ("buckets", "rows", "similarity", "expected"),
    [
        (14, 8, 0.5, 0.05332),
        (14, 8, 0.6, 0.21112),
        (14, 8, 0.7, 0.56450),
        (14, 8, 0.75, 0.77163),
        (14, 8, 0.8, 0.92355),
        (14, 8, 0.85, 0.98837),
        (14, 8, 0.9, 0.99962),
        (450, 20, 0.7, 0.30177),
        (450, 20, 0.8, 0.99458),
        (20, 10, 0.75, 0.68627),
        (15, 93, 0.95, 0.11989),
        (9, 13, 0.8, 0.39884),
        (20, 450, 0.9, 0.0),
    ],
)
def test_collision_probability(buckets: int, rows: int, similarity: float, expected: float) -> None:
    assert collision_probability(similarity, buckets, rows) == pytest.approx(expected, abs=6e-6)


def test_signatures_estimate_the_similarity() -> None:
    # Two sets of 900 with 800 in common: J = 0.8; the estimator's standard error at 2,000 hashes is 0.0089.
    rng = np.random.default_rng(0)
    common, first, second = np.split(rng.integers(0, 2**63, 1000, dtype=np.uint64), [800, 900])
    config = MinhashConfig(num_buckets=250, hashes_per_bucket=8)
    signatures = MinhashSigner(config).signatures([np.append(common, first), np.append(common, second)])
    assert float((signatures[0] == signatures[1]).mean()) == pytest.approx(0.8, abs=0.03)


def test_candidates_come_as_often_as_the_formula_says() -> None:
    rng = np.random.default_rng(1)
    signer = MinhashSigner(MinhashConfig())
    hits, trials = 0, 400
    for _ in range(trials):
        common, first, second = np.split(rng.integers(0, 2**63, 260, dtype=np.uint64), [200, 230])
        keys = signer.bucket_keys(signer.signatures([np.append(common, first), np.append(common, second)]))
        hits += bool((keys[0] == keys[1]).any())
    # J = 200/260 = 0.769: P = 0.8417, standard error 0.018
    assert hits / trials == pytest.approx(collision_probability(200 / 260, 14, 8), abs=0.06)


def test_signature_does_not_depend_on_batch_or_block() -> None:
    texts = ["word " * 3 + " ".join(f"t{i}w{j}" for j in range(40 * i + 5)) for i in range(30)]
    signer = MinhashSigner(MinhashConfig())
    shingles = shingle_arrays(texts)
    together = signer.signatures(shingles)
    alone = np.concatenate([signer.signatures([item]) for item in shingles])
    assert np.array_equal(together, alone)
    plain = [
        [int((item * a + b).min()) for a, b in zip(signer._factors, signer._offsets, strict=True)] for item in shingles
    ]
    assert together.tolist() == plain
    long = [np.arange(70_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)]
    expected = [int((long[0] * a + b).min()) for a, b in zip(signer._factors, signer._offsets, strict=True)]
    assert signer.signatures([long[0][:10], *long, long[0][:9]])[1].tolist() == expected


def test_shingles_of_the_fox() -> None:
    first = "the quick brown fox jumps over the lazy dog today"
    second = first.replace("jumps", "leaps")
    values = [jaccard(shingle_set(first, n), shingle_set(second, n)) for n in (1, 2, 3, 5)]
    assert values == pytest.approx([0.8, 0.6364, 0.4545, 0.0909], abs=5e-5)


def test_chain_keeps_what_is_different() -> None:
    # bug D1: each text resembles its neighbour; datatrove keeps 1 of 20.
    texts = [" ".join(f"w{j}" for j in range(3 * i, 3 * i + 60)) for i in range(20)]
    assert [round(jaccard(shingle_set(texts[0]), shingle_set(texts[i])), 3) for i in (1, 2, 3)] == [
        0.898,
        0.806,
        0.723,
    ]
    assert len(kept(texts)) >= 5
    sets = [shingle_set(text) for text in texts]
    for pair in find_near_duplicates(texts, range(20), MinhashConfig()):
        assert (
            pair.similarity == pytest.approx(jaccard(sets[pair.kept], sets[pair.removed])) and pair.similarity >= 0.8
        )
        assert pair.kept in kept(texts)


def test_short_texts() -> None:
    # bug D2: fewer words than a shingle.
    assert kept(["cat", "dog", "cat"]) == [0, 1]
    assert kept(["hi there", "hi there", "there hi"]) == [0, 2]
    assert kept(["!!!", "???", "!!!", "", " "]) == [0, 1, 3, 4]


def test_scripts_without_spaces() -> None:
    # bug D3: a 42-character Chinese text twice, a near copy, an unrelated one: the exact copy goes, the rest stays.
    text = (
        "\u6211\u4eec\u4eca\u5929\u65e9\u4e0a\u53bb\u5e02\u573a\u4e70\u4e86\u65b0\u9c9c\u7684\u852c\u83dc\u548c"
        "\u6c34\u679c\u7136\u540e\u56de\u5bb6\u4e00\u8d77\u505a\u4e86\u4e00\u987f\u4e30\u76db\u7684\u665a\u9910\u5e86\u795d"
        "\u5b69\u5b50\u5f97\u5230\u5956\u72b6"
    )
    assert len(text) == 42
    near = text[:20] + "\u8c46" + text[21:]
    other = (
        "\u5929\u6c14\u9884\u62a5\u8bf4\u660e\u5929\u4f1a\u4e0b\u96e8\u6240\u4ee5\u8bf7\u8bb0\u5f97\u5e26\u4f1e\u51fa\u95e8"
        * 2
    )
    assert kept([text, text, near, other]) == [0, 2, 3]
    long = text * 3 + other
    assert kept([long, long[:-1]]) == [0]


def test_numbers_tell_documents_apart() -> None:
    # bug D5: five invoices that differ in their amounts.
    invoices = [
        f"Invoice {i}. Item one {i}7.50 item two {i}3.20 shipping {i}9.99 sum {i}40.10 due on day {i} of month {i}2"
        for i in range(1, 6)
    ]
    assert kept(invoices) == [0, 1, 2, 3, 4]
    assert kept(invoices, numbers="mask") == [0]


def test_unrelated_texts_never_merge_and_edits_are_found() -> None:
    rng = random.Random(0)
    vocabulary = [f"word{i}" for i in range(3000)]
    originals = [" ".join(rng.choices(vocabulary, k=200)) for _ in range(150)]
    assert kept(originals) == list(range(150))
    edited = []
    for text in originals:
        parts = text.split()
        parts[rng.randrange(200)] = "changed"  # J = 191/201 = 0.95
        edited.append(" ".join(parts))
    pairs = find_near_duplicates(originals + edited, range(300), MinhashConfig())
    assert {(pair.kept, pair.removed) for pair in pairs} == {(i, i + 150) for i in range(150)}


def test_survivor_does_not_depend_on_the_order() -> None:
    # bug D8
    base = " ".join(f"w{i}" for i in range(100))
    rows = [("web", "b", base), ("wiki", "c", base + " a"), ("wiki", "a", base + " bb"), ("web", "d", base + " c c c")]
    expected = None
    for seed in range(6):
        shuffled = random.Random(seed).sample(rows, len(rows))
        sources, ids, texts = zip(*shuffled, strict=True)
        order = survivor_order(sources, [len(text) for text in texts], ids, ["wiki", "web"])
        gone = {ids[pair.removed] for pair in find_near_duplicates(texts, order, MinhashConfig())}
        survivors = [name for name in ids if name not in gone]
        expected = expected or survivors
        assert survivors == ["a"] == expected


def test_exact_duplicates() -> None:
    texts = ["One  text\nhere", "one text here", "One text here", "", "  ", "caf\u00e9", "cafe\u0301"]
    assert find_exact_duplicates(texts, [2, 1, 0, 3, 4, 5, 6]) == {0: 2, 6: 5}
    assert text_key(" \n") == b""


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="similarity_threshold = 1.5"):
        MinhashConfig(similarity_threshold=1.5)
    with pytest.raises(UserError, match="num_buckets = 0"):
        MinhashConfig(num_buckets=0)


def documents() -> list[Document]:
    base = " ".join(f"w{i}" for i in range(60))
    rows = [
        ("d1", "web", base),
        ("d2", "books", base),
        ("d3", "web", base + " more"),
        ("d4", "web", "  "),
        ("d5", "web", "x y"),
    ]
    return [Document(text, name, metadata={"source": source}) for name, source, text in rows]


def test_blocks_write_pairs_and_reasons(tmp_path) -> None:
    block = ExactDeduplication(["books", "web"], tmp_path / "exact.parquet")
    given = documents()
    out = list(block.run(iter(given)))
    assert [document.id for document in out] == ["d2", "d3", "d5"]
    assert out[0].metadata["duplicates"] == 1
    assert given[3].metadata["filter_reason"] == "empty_text"
    near = NearDuplicateRemoval(["books", "web"], tmp_path / "near.parquet", MinhashConfig())
    assert [document.id for document in near.run(iter(out))] == ["d2", "d5"]
    (pair,) = read_pairs(tmp_path / "near.parquet")
    assert pair == {
        "kept": "d2",
        "kept_source": "books",
        "removed": "d3",
        "removed_source": "web",
        "similarity": round(56 / 57, 4),
    }
    with pytest.raises(ValueError, match="1 task"):
        list(near.run(iter([]), 0, 2))


def test_blank_texts_have_no_signature() -> None:
    signed, keys = bucket_keys_of_texts(["", "a b", " "], MinhashConfig())
    assert signed.tolist() == [1] and keys.shape == (1, 14)


def test_verified_removal_is_right_and_misses_little() -> None:
    # LSH alone is right two times in three here; with verification nothing dissimilar goes, whatever the edits.
    rng = random.Random(3)
    vocabulary = [f"word{i}" for i in range(2000)]
    originals = [rng.choices(vocabulary, k=300) for _ in range(200)]
    edited = [
        [w if rng.random() > rate else "new" for w in text] for text in originals for rate in [rng.uniform(0, 0.05)]
    ]
    texts = [" ".join(text) for text in originals + edited]
    truth = {i for i in range(200) if jaccard(shingle_set(texts[i]), shingle_set(texts[200 + i])) >= 0.8}
    found = {pair.kept for pair in find_near_duplicates(texts, range(400), MinhashConfig())}
    assert found <= truth and len(found) >= 0.94 * len(truth) and 50 < len(truth) < 150


def test_memory_for_a_very_long_document_is_bounded() -> None:
    # datatrove's signature takes 865 MB for these 500,000 words.
    rng = np.random.default_rng(0)
    text = " ".join(map("w{}".format, rng.integers(0, 50_000, 500_000).tolist()))
    bucket_keys_of_texts(["tables are made once"], MinhashConfig())
    tracemalloc.start()
    bucket_keys_of_texts([text], MinhashConfig())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6
