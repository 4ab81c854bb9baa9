"""Names, optional packages and progress speak plainly."""

import io

import pytest

from hf_pretrain.utils.cache import cache_dir
from hf_pretrain.utils.errors import one_line
from hf_pretrain.utils.memory import peak_memory_bytes
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.optional import MissingPackageError, is_available, require
from hf_pretrain.utils.progress import Progress, format_count, format_duration


def test_unknown_names_get_a_guess() -> None:
    message = unknown_name_message("source", "wbe", ["web", "books"])
    assert message == "Unknown source 'wbe'. Did you mean 'web'? Available: books, web."
    assert "Did you mean" not in unknown_name_message("source", "zzz", ["web"])
    assert unknown_name_message("source", "x", []).endswith("Available: none.")


def test_a_missing_package_names_the_pip_line() -> None:
    assert is_available("json") and not is_available("no_such_module_here")
    with pytest.raises(
        MissingPackageError, match=r'Curation needs no_such_module_here: run `pip install "hf-pretrain\[sft\]"`'
    ):
        require("no_such_module_here", "sft", "Curation")
    assert require("json.decoder", "sft", "x").__name__ == "json.decoder"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_PRETRAIN_CACHE", "elsewhere")
    assert str(cache_dir()) == "elsewhere"
    monkeypatch.delenv("HF_PRETRAIN_CACHE")
    assert cache_dir().name == "hf_pretrain"


def test_errors_fit_on_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 1000))) == 600


@pytest.mark.parametrize(
    "seconds, text", [(4.21, "4.2s"), (42, "42s"), (187, "3:07"), (59.6, "1:00"), (7509, "2:05:09"), (-1, "0.0s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    "value, text", [(734, "734"), (3.14, "3.1"), (12345, "12.3k"), (4.56e6, "4.56M"), (1.2e9, "1.20B"), (0, "0")]
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


def test_progress_in_a_log_is_plain_lines() -> None:
    stream = io.StringIO()
    with Progress("reading", total=4, unit="docs", quiet=False, stream=stream, every=0.0) as progress:
        for _ in range(4):
            progress.update()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5 and "\r" not in stream.getvalue()
    assert lines[0].startswith("reading: 1/4 (25%) docs,") and lines[0].endswith("left")
    assert lines[-1].startswith("reading: 4 docs in")


def test_progress_on_a_terminal_is_one_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress("reading", quiet=False, stream=stream) as progress:
        progress._last = -1e9
        progress.update(3, note="web")
    assert stream.getvalue().count("\n") == 1 and "\rreading: 3 docs," in stream.getvalue()
    assert "| web" in stream.getvalue()


def test_progress_is_silent_when_asked() -> None:
    stream = io.StringIO()
    with Progress("reading", quiet=True, stream=stream, every=0.0) as progress:
        progress.update()
    assert stream.getvalue() == ""


def test_peak_memory_is_that_of_a_process_with_python_in_it() -> None:
    own, with_children = peak_memory_bytes(), peak_memory_bytes(include_children=True)
    if own is not None:  # None on systems that do not say.
        assert 1_000_000 < own <= with_children < 1 << 50
