"""Deduplication beside MinHash: bands by recall, addresses, SimHash, Bloom filter, passages, paragraphs."""

import random
from itertools import combinations

import numpy as np
import pytest
from datatrove.data import Document

from hf_pretrain.corpus.dedup.bloom import BloomFilter, NgramConfig, bloom_size
from hf_pretrain.corpus.dedup.minhash import MinhashConfig, choose_bands, collision_probability
from hf_pretrain.corpus.dedup.paragraphs import ParagraphConfig, remove_paragraphs
from hf_pretrain.corpus.dedup.simhash import SimhashConfig, block_keys, hamming, simhashes
from hf_pretrain.corpus.dedup.substrings import SubstringConfig, cut_spans, repeated_spans
from hf_pretrain.corpus.dedup.trimming import NgramDeduplication, ParagraphDeduplication, SubstringDeduplication
from hf_pretrain.corpus.dedup.urls import canonical_url
from hf_pretrain.utils.errors import UserError


def sentence(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices([f"w{i}" for i in range(2000)], k=size))


def test_bands_meet_both_demands_and_nothing_smaller_does() -> None:
    for similarity, recall, keep, rate in [(0.8, 0.99, 0.5, 0.5), (0.8, 0.999, 0.5, 0.9), (0.7, 0.95, 0.4, 0.2)]:
        buckets, rows = choose_bands(similarity, recall, keep, rate)
        assert collision_probability(similarity, buckets, rows) >= recall
        assert collision_probability(keep, buckets, rows) <= rate
        for b in range(1, buckets * rows):
            for r in range(1, (buckets * rows - 1) // b + 1):
                fits = collision_probability(similarity, b, r) >= recall and collision_probability(keep, b, r) <= rate
                assert not fits
    config = MinhashConfig(recall=0.99)
    assert (config.num_buckets, config.hashes_per_bucket) == choose_bands(0.8, 0.99)
    with pytest.raises(UserError, match="no signature of up to 1024 hashes"):
        MinhashConfig(recall=0.9999, keep_similarity=0.79, keep_rate=0.01)
    with pytest.raises(UserError, match="0 < keep_rate < recall < 1"):
        MinhashConfig(recall=1.5)


def test_canonical_url() -> None:
    same = [
        "http://Example.org/a/b/?utm_source=x&b=2&a=1#top",
        "https://www.example.org:443/a//b?a=1&b=2",
        "example.org/a/b/index.html?a=1&b=2&fbclid=7",
        "https://example.org/a/%62;jsessionid=9?b=2&a=1",
    ]
    assert {canonical_url(url) for url in same} == {"example.org/a/b?a=1&b=2"}
    assert canonical_url("http://example.org/A") != canonical_url("http://example.org/a")
    assert canonical_url("http://example.org/?page=1") != canonical_url("http://example.org/?page=2")
    for url in ("", "mailto:a@b.c", "ftp://x.org/y", "http://[::1", "javascript:x"):
        assert canonical_url(url) == ""


def test_simhash_follows_the_angle_and_blocks_find_every_pair() -> None:
    rng = np.random.default_rng(0)
    distances = []
    for _ in range(60):
        common, first, second = np.split(rng.integers(0, 2**63, 1100, dtype=np.uint64), [900, 1000])
        a, b = simhashes([np.append(common, first), np.append(common, second)])
        distances.append(int(hamming(a, b)))
    # cosine 0.9: E = 64 arccos(0.9) / pi = 9.188, standard error 0.36
    assert np.mean(distances) == pytest.approx(9.188, abs=1.3)
    base = rng.integers(0, 2**63, 50, dtype=np.uint64)
    near = base.copy()
    for place in range(50):
        for bit in rng.choice(64, place % 5, replace=False):
            near[place] ^= np.uint64(1) << np.uint64(bit)
    keys, others = block_keys(base, 3, 6), block_keys(near, 3, 6)
    assert keys.shape == (50, 20)
    found = (keys == others).any(axis=1)
    assert found[hamming(base, near) <= 3].all()
    with pytest.raises(UserError, match="at most 512"):
        SimhashConfig(max_distance=8, num_blocks=16)


def test_bloom_size_and_false_positives_at_design_load() -> None:
    assert bloom_size(10**9, 0.01) == (pytest.approx(9.585e9, rel=1e-3), 7)
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 2**63, (2, 20_000), dtype=np.uint64)
    bloom = BloomFilter(20_000, 0.01)
    bloom.add(inside)
    assert bloom.test(inside).all()
    assert 0.005 < bloom.test(outside).mean() < 0.015
    assert bloom.load == pytest.approx(0.5, abs=0.02)


def test_bloom_block_drops_repeats_alone_and_goes_on_from_a_saved_filter(tmp_path) -> None:
    # bug D12, and the stock filter that drops 299 of 300 documents of their own.
    rng = random.Random(0)
    texts = [sentence(rng, 60) for _ in range(300)]
    config = NgramConfig(expected_ngrams=300 * 48)
    documents = [Document(text, f"{i:03d}") for i, text in enumerate(texts)]
    block = NgramDeduplication(config, save_to=tmp_path / "bloom")
    assert len(list(block.run(iter(documents)))) == 300
    again = [Document(texts[7] + " and a little more", "x"), Document(sentence(rng, 60), "y"), Document("short", "z")]
    after = NgramDeduplication(config, load_from=tmp_path / "bloom")
    assert [item.id for item in after.run(iter(again))] == ["y", "z"]
    assert again[0].metadata["filter_reason"] == "seen_ngrams"
    with pytest.raises(UserError, match="it was made with"):
        list(NgramDeduplication(NgramConfig(ngram_size=5), load_from=tmp_path / "bloom").run(iter(again)))


def test_first_copy_of_a_passage_stays_and_clean_texts_pass() -> None:
    # bugs D10 and D11
    rng = random.Random(1)
    passage = "na\u00efve caf\u00e9 " + sentence(rng, 58)
    texts = [
        f"{sentence(rng, 30)} {passage} {sentence(rng, 30)}",
        f"{sentence(rng, 30)} {passage} {sentence(rng, 30)}",
        sentence(rng, 200),
        f"{passage} {passage}",
        " ".join(passage.split()[:49]),
    ]
    spans = repeated_spans(texts, range(5), 50)
    assert set(spans) == {1, 3}
    start, stop = spans[1][0]
    assert texts[1][start:stop] == passage
    assert cut_spans(texts[1], spans[1]) == texts[1].replace(f" {passage}", "")
    assert cut_spans(texts[3], spans[3]) == ""
    assert repeated_spans(texts, [1, 0, 2, 3, 4], 50).keys() == {0, 3}
    assert repeated_spans([], [], 50) == {}


def test_passages_against_brute_force() -> None:
    rng = random.Random(2)
    texts = [" ".join(rng.choices("abc", k=40)) for _ in range(12)]
    spans = repeated_spans(texts, range(12), 4)
    seen: set[str] = set()
    for index, text in enumerate(texts):
        covered = [False] * 40
        words = text.split()
        for place in range(37):
            window = " ".join(words[place : place + 4])
            if window in seen:
                covered[place : place + 4] = [True] * 4
            seen.add(window)
        expected = {2 * place for place in range(40) if covered[place]}
        assert {at for start, stop in spans.get(index, []) for at in range(start, stop, 2)} == expected


def test_paragraphs_by_count_and_by_likeness() -> None:
    rng = random.Random(3)
    notice = sentence(rng, 30)
    own = [sentence(rng, 40) for _ in range(4)]
    texts = [f"{own[i]}\n\n{notice}" for i in range(3)] + [f"{own[3]}\n\n{notice} changed", "Yes\n\nYes\n\nYes"]
    changed, counts = remove_paragraphs(texts, range(5), ParagraphConfig())
    assert changed == {1: own[1], 2: own[2]} and list(counts.values()) == [3]
    changed, _ = remove_paragraphs(texts, range(5), ParagraphConfig(max_copies=2))
    assert changed == {2: own[2]}
    changed, _ = remove_paragraphs(texts, range(5), ParagraphConfig(fuzzy=True))
    assert changed == {1: own[1], 2: own[2], 3: own[3]}


def test_documents_left_blank_are_dropped_and_counted() -> None:
    # bug C5
    rng = random.Random(4)
    text = sentence(rng, 80)
    for block, reason in [
        (ParagraphDeduplication(ParagraphConfig()), "duplicate_paragraphs"),
        (SubstringDeduplication(SubstringConfig()), "duplicate_passages"),
    ]:
        documents = [Document(text, "b"), Document(text, "a"), Document(sentence(rng, 80), "c"), Document("", "d")]
        out = list(block.run(iter(documents)))
        assert [item.id for item in out] == ["a", "c", "d"] and out[0].text == text
        assert documents[0].metadata["filter_reason"] == reason
        with pytest.raises(ValueError, match="1 task"):
            list(block.run(iter([]), 0, 2))


def test_simhash_pairs_of_all_choices() -> None:
    masks = block_keys(np.array([2**64 - 1], np.uint64), 2, 4)[0]
    assert sorted(int(mask).bit_count() for mask in masks) == [32] * len(list(combinations(range(4), 2)))
