"""Pages dropped by their address, offline; detectors of language; the bound on CPU time."""

import pickle
import threading
import time

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config_ingest import ExtractionConfig, LanguageConfig, UrlConfig
from hf_pretrain.corpus.ingest import extraction
from hf_pretrain.corpus.ingest.cpu_limit import CpuTimeout, cpu_limit
from hf_pretrain.corpus.ingest.language import LanguageStep, detect_language
from hf_pretrain.corpus.ingest.language_detectors import detector_identity, load_detector
from hf_pretrain.utils.errors import UserError


CONFIG = UrlConfig(
    enabled=True,
    lists=False,
    domains=["Bad.co.uk", "ads.example.org"],
    urls=["https://fine.org/but-this"],
    words=["poker"],
    soft_words=["free", "money", "win"],
    subwords=["xxxgirl"],
)
ADDRESSES = {
    "https://www.bad.co.uk/page": "url_domain",
    "HTTPS://ADS.EXAMPLE.ORG/x": "url_subdomain",
    "https://www.example.org/x": None,
    "https://fine.org/But-This": "url_listed",
    "https://fine.org/but-this-one": None,
    "https://fine.org/play/POKER/now": "url_word",
    "https://fine.org/pokerface": None,
    "https://fine.org/p%6Fker": "url_word",
    "https://fine.org/win-Free-stuff": "url_soft_words",
    "https://fine.org/free-free": None,
    "https://fine.org/myXXX-girls": "url_subword",
    "not an address": None,
    "http://[::1": None,
    "": None,
}


def test_addresses_by_reason_without_a_network():
    pytest.importorskip("tldextract")
    pytest.importorskip("ahocorasick")
    from hf_pretrain.corpus.ingest.urls import OfflineUrlFilter

    step = OfflineUrlFilter(CONFIG)
    for url, reason in ADDRESSES.items():
        verdict = step.filter(Document("x", "1", metadata={"url": url} if url else {}))
        assert verdict is True if reason is None else verdict == (False, reason), url
    assert step.stats["without_url"].total == 1
    documents = [Document("x", str(n), metadata={"url": url}) for n, url in enumerate(ADDRESSES)]
    kept = list(step.run(documents))
    assert len(kept) == list(ADDRESSES.values()).count(None)
    assert step.stats["dropped"].total == len(ADDRESSES) - len(kept)


@pytest.mark.slow
def test_the_lists_that_datatrove_ships(tmp_path, monkeypatch):
    pytest.importorskip("ahocorasick")
    from datatrove.pipeline.filters.url_filter import URLFilter

    from hf_pretrain.corpus.ingest.urls import OfflineUrlFilter

    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path))
    step, stock = OfflineUrlFilter(UrlConfig(enabled=True)), URLFilter()
    stock.tldextractor = step.tldextractor
    assert step.filter(Document("x", "1", metadata={"url": "https://example.org/PORN/x"})) == (False, "url_word")
    stock.download_data()
    listed = sorted(stock.block_listed_domains)[1::9001]
    others = [f"www.page{number}.example-{number}.org" for number in range(500)]
    for domain in [*listed, *others]:
        document = Document("x", "1", metadata={"url": f"https://{domain}/page"})
        theirs, mine = stock.filter(document), step.filter(document)
        assert (theirs is True) == (mine is True), (domain, theirs, mine)
    # The second process finds the hashes made.
    (made,) = tmp_path.iterdir()
    before = made.stat().st_mtime_ns
    assert OfflineUrlFilter(UrlConfig(enabled=True)).filter(document) is True and made.stat().st_mtime_ns == before


def test_an_empty_list_is_no_filter():
    with pytest.raises(UserError, match=r"urls\.enabled = true with lists = false"):
        UrlConfig(enabled=True, lists=False)


TEXTS = {
    "en": "The committee will meet again on Thursday to discuss the results of the survey with all members.",
    "fr": "Le conseil se r\u00e9unira de nouveau jeudi pour discuter des r\u00e9sultats avec tous les membres.",
    "ru": "\u041a\u043e\u043c\u0438\u0442\u0435\u0442 \u0432 \u0447\u0435\u0442\u0432\u0435\u0440\u0433.",
    "ar": "\u0633\u062a\u062c\u062a\u0645\u0639 \u0627\u0644\u0644\u062c\u0646\u0629 \u064a\u0648\u0645.",
    "zh": "\u59d4\u5458\u4f1a\u5c06\u518d\u6b21\u5f00\u4f1a\u8ba8\u8bba\u7ed3\u679c\u3002",
}


def config_of(detector, folder):
    pytest.importorskip(detector)
    if detector != "fasttext":
        return LanguageConfig(detector=detector, keep=["en", "fra"])
    import fasttext

    # A model of five languages, in the form of lid.176.ftz.
    (folder / "train.txt").write_text("".join(f"__label__{code} {text}\n" * 50 for code, text in TEXTS.items()))
    model = fasttext.train_supervised(str(folder / "train.txt"), dim=8, epoch=30, minn=1, maxn=3, bucket=500, thread=1)
    model.save_model(str(folder / "lid.bin"))
    return LanguageConfig(detector=detector, keep=["en", "fra"], model_path=str(folder / "lid.bin"))


@pytest.mark.parametrize("detector", ["py3langid", "pycld2", "fasttext"])
def test_every_detector_speaks_one_code(tmp_path, detector):
    config = config_of(detector, tmp_path)
    found = {code: detect_language(text, 2000, load_detector(config)) for code, text in TEXTS.items()}
    assert {code: answer[0] for code, answer in found.items()} == {code: code for code in TEXTS}
    assert all(0 <= score <= 1 for _, score in found.values())
    assert detector_identity(config).startswith(f"{detector} ")
    mixed = TEXTS["en"] + " " + TEXTS["ar"] + "\ud800 \x01 \u202e"
    code, score = detect_language(mixed, 2000, load_detector(config))
    assert code and 0 <= score <= 1
    assert detect_language(" 123 \ufffd\n", 2000, load_detector(config)) == ("und", 0.0)


@pytest.mark.parametrize("detector", ["py3langid", "pycld2", "fasttext"])
def test_the_step_drops_by_reason_and_travels_to_workers(tmp_path, detector):
    step = LanguageStep(config_of(detector, tmp_path))
    step.filter(Document(TEXTS["en"], "1"))  # the model is loaded here, and left behind
    documents = [Document(text, code) for code, text in TEXTS.items()] + [Document(" ", "blank")]
    kept = list(pickle.loads(pickle.dumps(step)).run(documents))
    assert [doc.id for doc in kept] == ["en", "fr"]


def test_a_missing_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"language\.model_path = .* no such file"):
        load_detector(LanguageConfig(detector="fasttext", model_path=str(tmp_path / "x.ftz")))
    with pytest.raises(UserError, match="for detector: fasttext alone"):
        LanguageConfig(model_path="x")


def burn():
    while True:
        sum(range(1000))


def test_cpu_time_is_bounded_and_waiting_is_not():
    with pytest.raises(CpuTimeout), cpu_limit(0.05):
        burn()
    with cpu_limit(0.05):
        time.sleep(0.2)
    sum(range(10**6))  # the timer is off again


def test_a_slow_page_is_dropped_by_reason(monkeypatch):
    pytest.importorskip("trafilatura")
    import trafilatura

    monkeypatch.setattr(trafilatura, "extract", lambda *args, **kwargs: burn())
    step = extraction.TrafilaturaExtractor(ExtractionConfig(extractor="trafilatura", cpu_seconds=0.05))
    assert list(step.run([Document("<p>x</p>", "1")])) == []
    assert step.stats["dropped_cpu_time"].total == 1


def test_in_another_thread_there_is_no_limit():
    done = []

    def work():
        with cpu_limit(0.001):
            done.append(sum(range(10**6)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(done) == 1
