"""arXiv sources: archives in the forms arXiv hands out, `\\input`, comments, preamble, macros, and damage."""

import gzip
import io
import tarfile

import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest import arxiv
from hf_pretrain.corpus.ingest.latex import body_of, expand, flatten, without_comments
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.utils.errors import UserError


MAIN = r"""% a comment of the author
\documentclass{article}
\usepackage{amsmath}
\newcommand{\R}{\mathbb{R}}
\newcommand{\norm}[2][2]{\|#1\|}
\newcommand*\pair[2]{(#1, #2)}
\def\eps{\varepsilon}
\DeclareMathOperator{\rank}{rank}
\title{On \R-things}
\begin{document}
\maketitle
\begin{abstract}We study $\R$ with 50\% of $\eps$.% hidden
\end{abstract}
\input{sections/intro}
\include{method}
\input{nowhere}
\begin{verbatim}
100% verbatim
\end{verbatim}
\begin{comment}
secret
\end{comment}
\bibliographystyle{plain}
\bibliography{refs}
\end{document}
after the end
"""
FILES = {
    "main.tex": MAIN,
    "sections/intro.tex": "\\section{Intro}\n% TODO\nHello $\\pair{a}{b_{1}}$, $\\rank A$.\n\\input{main}\n",
    "method.tex": "\\section{Method}\nA na\u00efve method.",
    "supplement.tex": "\\documentclass{article}\\begin{document}short\\end{document}",
    "refs.bbl": "\\begin{thebibliography}{1}\\bibitem{a} A. Author.\\end{thebibliography}",
    "figure.pdf": "%PDF-1.4",
}


def tar_of(files, mode="w:gz", encoding="utf-8"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode(encoding)
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return stream.getvalue()


def read(path, **settings):
    reader = build_reader(SourceConfig(name="papers", kind="arxiv", path=str(path), **settings))
    return list(reader()), reader.stats


def test_a_paper_of_several_files(tmp_path):
    (tmp_path / "2401.01234v2.tar.gz").write_bytes(tar_of(FILES))
    ((document,), _) = read(tmp_path)
    text = document.text
    assert document.id == "papers/2401.01234v2" and document.metadata["url"] == "https://arxiv.org/abs/2401.01234v2"
    assert document.metadata["title"] == r"On \mathbb{R}-things" and document.metadata["main_file"] == "main.tex"
    assert document.metadata["missing_inputs"] == 2  # one that is nowhere, one that would go round in a circle
    assert text.startswith("On \\mathbb{R}-things\n\n") and r"$\mathbb{R}$ with 50\% of $\varepsilon$." in text
    assert r"$(a, b_{1})$, $\operatorname{rank} A$" in text and "A na\u00efve method." in text
    assert "100% verbatim" in text
    for gone in ("comment of the author", "hidden", "TODO", "secret", "usepackage", "after the end", "refs", "short"):
        assert gone not in text


def test_as_text_with_formulas_left(tmp_path):
    pytest.importorskip("pylatexenc")
    (tmp_path / "2401.01234.tar.gz").write_bytes(tar_of(FILES))
    ((document,), _) = read(tmp_path, options={"output": "text", "bibliography": True})
    assert r"$(a, b_{1})$" in document.text and "A na\u00efve method." in document.text
    assert "\\section" not in document.text and "Author" in document.text


def test_a_single_file_in_latin_1_and_the_bulk_archive(tmp_path):
    tex = "\\documentclass{article}\\begin{document}Caf\u00e9 th\u00e9orie.\\end{document}"
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "hep-th9901001.gz").write_bytes(gzip.compress(tex.encode("latin-1")))
    ((document,), _) = read(tmp_path / "one")
    assert document.text == "Caf\u00e9 th\u00e9orie." and document.metadata["paper"] == "hep-th9901001"

    members = {
        "2401/2401.00001.gz": gzip.compress(tex.encode()),
        "2401/2401.00002.pdf": b"%PDF-1.5 ...",
        "2401/2401.00003.gz": tar_of(FILES),
        "2401/2401.00004.gz": gzip.compress(b"%PDF-1.5 packed"),
        "2401/2401.00005.gz": gzip.compress(tex.encode())[:-9],
        "2401/2401.00006.gz": tar_of({"a.txt": "no latex"}),
    }
    (tmp_path / "bulk.tar").write_bytes(tar_of(members, "w"))
    documents, stats = read(tmp_path / "bulk.tar", on_bad_row="skip")
    assert [doc.metadata["paper"] for doc in documents] == ["2401.00001", "2401.00003"]
    assert (stats["skipped_pdf"].total, stats["skipped_no_latex"].total) == (2, 1)
    assert stats["bad_rows_broken_archive"].total == 1
    with pytest.raises(UserError, match=r"bulk\.tar, row 5: gzip data cut off"):
        read(tmp_path / "bulk.tar")


def test_truncated_and_hostile_archives(tmp_path, monkeypatch):
    monkeypatch.setattr(arxiv, "FLOOR_BYTES", 2**20)
    whole = tar_of(FILES)
    path = tmp_path / "2401.00001.tar.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"2401\.00001\.tar\.gz: gzip data cut off"):
        read(path)
    path.write_bytes(tar_of({"../../etc/evil.tex": MAIN, **FILES}))
    with pytest.raises(UserError, match="leads out of the archive"):
        read(path)
    path.write_bytes(gzip.compress(bytes(20_000_000), 1))
    with pytest.raises(UserError, match="row 1: unpacks to more than"):
        read(path)


def test_macros_that_grow_without_end_are_left_alone():
    bomb = {"a": (0, r"\b\b\b\b\b\b\b\b\b\b" * 10), "b": (0, r"\c" * 1000), "c": (0, r"\d" * 1000)}
    assert expand(r"x \a y", bomb) == r"x \a y"
    assert expand(r"\f{1}", {"f": (1, r"\f{#1}")}) == r"\f{1}"
    assert expand(r"\f{1", {"f": (1, "<#1>")}) == r"\f{1"
    assert expand(r"\f{a}\ff", {"f": (1, "<#1>")}) == r"<a>\ff"


def test_comments():
    assert without_comments("a\\% b % c\n% whole\nd \\\\% e\n") == "a\\% b \nd \\\\\n"
    with pytest.raises(ValueError, match="no file holds"):
        flatten({"a.tex": "x", "b.tex": "y"})
    assert body_of(r"\section{A} text")[0] == r"\section{A} text"
