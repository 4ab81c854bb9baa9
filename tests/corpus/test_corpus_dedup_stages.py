"""Deduplication over shards: the survivors of memory, whatever the tasks and the order; faults between the stages."""

import json
import random
import shutil
from pathlib import Path

import pytest
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.dedup.index import BuildDedupIndex
from hf_pretrain.corpus.dedup.keep import KeepPolicy
from hf_pretrain.corpus.dedup.methods import DedupMethod, ExactText, ExactUrl, Minhash, Simhash
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.pairs import read_pairs
from hf_pretrain.corpus.dedup.simhash import SimhashConfig
from hf_pretrain.corpus.dedup.stages import DedupBuckets, DedupClusters, DedupFeatures, DedupFilter, DedupSignatures
from hf_pretrain.corpus.dedup.steps import MemoryDeduplication
from hf_pretrain.corpus.documents import DocumentReader
from hf_pretrain.utils.errors import UserError


METHODS = [
    ExactText(),
    ExactUrl(),
    Minhash(MinhashConfig(num_buckets=7, hashes_per_bucket=4)),
    Simhash(SimhashConfig(max_distance=2, num_blocks=4)),
]


def corpus(seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(500)]
    documents = []
    for number in range(40):
        parts = rng.choices(words, k=120)
        for copy in range(rng.randrange(1, 4)):
            edited = list(parts)
            if copy:
                edited[rng.randrange(120)] = "edited"
            documents.append(
                Document(
                    " ".join(edited if copy != 2 else parts),
                    f"d{number}-{copy}",
                    metadata={
                        "source": rng.choice(["web", "wiki"]),
                        "url": f"http{'s' * (copy > 0)}://www.site.org/{number // 2}?utm_source={copy}#top",
                    },
                )
            )
    documents += [
        Document(" \n", "blank", metadata={"source": "web"}),
        Document("\udcff", "odd", metadata={"source": "web"}),
    ]
    return documents


def staged(
    folder: Path, documents: list[Document], method: DedupMethod, tasks: int = 1, memory: int = 10**9, index=None
) -> tuple[list[str], list[dict]]:
    policy = KeepPolicy()

    def each(step: PipelineStep, count: int, read: bool = True) -> list[Document]:
        out = []
        for rank in range(count):
            given = [Document(d.text, d.id, metadata=dict(d.metadata)) for d in documents[rank::count]] if read else []
            out += list(step.run(iter(given), rank, count))
        return out

    each(DedupSignatures(folder, method, policy), tasks)
    each(DedupBuckets(folder, method, policy, index, memory_bytes=memory), min(tasks, method.num_keys), read=False)
    each(DedupFeatures(folder, method, policy, index), tasks)
    each(DedupClusters(folder, method, policy, ["wiki", "web"], index, memory_bytes=memory), 1, read=False)
    survivors = each(DedupFilter(folder, method, policy, index), tasks)
    return sorted(item.id for item in survivors), read_pairs(folder / "clusters" / "pairs.parquet")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_survivors_do_not_depend_on_tasks_order_or_memory(tmp_path, method: DedupMethod) -> None:
    documents = corpus()
    block = MemoryDeduplication(method, ["wiki", "web"], tmp_path / "pairs.parquet")
    copies = [Document(d.text, d.id, metadata=dict(d.metadata)) for d in documents]
    expected = sorted(item.id for item in block.run(iter(copies)))
    pairs = read_pairs(tmp_path / "pairs.parquet")
    assert 20 <= len(expected) < len(documents) - 15
    assert ("blank" in expected) == (method.name != "exact")
    for seed, tasks, memory in [(0, 1, 10**9), (1, 2, 10**9), (2, 4, 3000)]:
        shuffled = random.Random(seed).sample(documents, len(documents))
        survivors, found = staged(tmp_path / str(seed), shuffled, method, tasks, memory)
        assert survivors == expected
        assert sorted(map(str, found)) == sorted(map(str, pairs))
        blank = method.name == "exact"
        assert len(survivors) + len(found) + blank == len(documents)
    assert all(pair["similarity"] >= method.threshold and pair["kept"] in expected for pair in pairs)


@pytest.mark.parametrize("stage", ["signatures/00001", "buckets/003", "features/00000", "clusters"])
def test_a_part_deleted_between_stages_is_one_error(tmp_path, stage: str) -> None:
    method, documents = Minhash(MinhashConfig()), corpus()
    staged(tmp_path, documents, method, 2)
    shutil.rmtree(tmp_path / stage)
    block = (
        DedupFilter(tmp_path, method) if stage in ("clusters", "signatures/00001") else DedupClusters(tmp_path, method)
    )
    with pytest.raises(UserError, match="is missing or incomplete; run the stage"):
        list(block.run(iter(documents)) if stage[0] in "bf" else block.run(iter(documents[::2]), 0, 2))


def test_a_cut_file_and_other_settings_are_errors(tmp_path) -> None:
    method, documents = Minhash(MinhashConfig()), corpus()
    staged(tmp_path, documents, method, 1)
    with pytest.raises(UserError, match="made with other settings"):
        DedupBuckets(tmp_path, Minhash(MinhashConfig(seed=2))).run()
    file = tmp_path / "signatures" / "00000" / "keys_002.u64"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="keys_002.u64 has .* bytes, not"):
        DedupBuckets(tmp_path, method).run()


def test_the_filter_refuses_other_documents(tmp_path) -> None:
    # bug D6: another number of tasks, another order, a document more or less.
    method, documents = Minhash(MinhashConfig()), corpus()
    staged(tmp_path, documents, method, 2)
    block = DedupFilter(tmp_path, method)
    with pytest.raises(UserError, match="tasks = 1; the signatures were made by 2 tasks"):
        list(block.run(iter(documents)))
    own = documents[::2]
    for given, message in [
        (own[::-1], "other document ids, or another order"),
        (own[:-1], "the reader"),
        (own + own[:1], "the reader has more"),
    ]:
        with pytest.raises(UserError, match=message):
            list(block.run(iter(given), 0, 2))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_an_earlier_crawl_removes_new_documents_only(tmp_path, method: DedupMethod) -> None:
    # bug D9: what is in the index stays, what resembles it goes, memory and shards alike.
    documents = corpus()
    old, new = documents[:30], documents
    list(BuildDedupIndex(tmp_path / "index", method).run(iter(old)))
    block = MemoryDeduplication(method, ["wiki", "web"], tmp_path / "pairs.parquet", index=tmp_path / "index")
    copies = [Document(d.text, d.id, metadata=dict(d.metadata)) for d in new]
    expected = sorted(item.id for item in block.run(iter(copies)))
    assert not {item.id for item in old} & set(expected)
    assert len(expected) > 10
    survivors, pairs = staged(tmp_path / "work", new, method, 2, index=tmp_path / "index")
    assert survivors == expected and sorted(map(str, pairs)) == sorted(
        map(str, read_pairs(tmp_path / "pairs.parquet"))
    )
    with pytest.raises(UserError, match="no index in that folder"):
        list(MemoryDeduplication(method, [], tmp_path / "p", index=tmp_path / "none").run(iter(copies)))


@pytest.mark.parametrize("method", [METHODS[0], METHODS[2]], ids=lambda method: method.name)
def test_all_documents_alike_and_none_at_all(tmp_path, method: DedupMethod) -> None:
    alike = [
        Document("the same few words again and again", f"{i:04d}", metadata={"source": "web"}) for i in range(300)
    ]
    survivors, pairs = staged(tmp_path / "alike", alike, method, 2)
    assert survivors == ["0000"] and len(pairs) == 299
    assert staged(tmp_path / "none", [], method, 2) == ([], [])


def test_keep_policy_reads_quality_length_and_date(tmp_path) -> None:
    text = "one and the same text of some length"
    rows = [
        ("a", 0.1, "2020-01-01"),
        ("b", 0.9, "2019-01-01"),
        ("c", 0.9, "2021-05-01T10:00:00+00:00"),
        ("d", None, None),
    ]
    documents = [
        Document(text, name, metadata={"source": "web", "quality": quality, "date": date})
        for name, quality, date in rows
    ]
    for order, winner in [
        (["quality", "newest"], "c"),
        (["quality", "oldest"], "b"),
        (["id"], "a"),
        (["oldest"], "b"),
    ]:
        block = MemoryDeduplication(ExactText(), [], tmp_path / "pairs", KeepPolicy(order))
        assert [item.id for item in block.run(iter(documents))] == [winner]
    with pytest.raises(UserError, match="criterion"):
        KeepPolicy(["beauty"])


@pytest.mark.slow
def test_ten_thousand_files_of_one_document_and_one_line_of_50_megabytes(tmp_path) -> None:
    for number in range(10_000):
        row = {"id": str(number), "text": f"note {number % 5000} of many", "metadata": {"source": "web"}}
        file = tmp_path / "documents" / "web" / f"{number:05d}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row) + "\n")
    documents = list(DocumentReader(tmp_path / "documents", ["web"]).run())
    documents.append(Document("whale ship sea " * 3_500_000, "long", metadata={"source": "web"}))
    survivors, pairs = staged(tmp_path / "work", documents, Minhash(MinhashConfig()), 2)
    assert len(survivors) == 5001 and len(pairs) == 5000 and "long" in survivors
