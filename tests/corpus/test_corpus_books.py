"""Books: Project Gutenberg text and EPUB files made here in the true form."""

import zipfile

import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.books import strip_gutenberg
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.utils.errors import UserError


pytest.importorskip("defusedxml")

GUTENBERG = """The Project Gutenberg eBook of A Tale, by A. Writer

Title: A Tale

Author: A. Writer

Language: English

*** START OF THE PROJECT GUTENBERG EBOOK A TALE ***

Produced by Volunteers
and others

CHAPTER I

Once upon a time.

*** END OF THE PROJECT GUTENBERG EBOOK A TALE ***

Section 1. Terms of use.
"""
CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="2.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:title>Une histoire</dc:title><dc:creator>M. Auteur</dc:creator>
<dc:language>fr-FR</dc:language></metadata><manifest>
<item id="two" href="text/ch%202.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/ch1.xhtml" media-type="application/xhtml+xml"/>
<item id="cover" href="cover.xhtml" media-type="application/xhtml+xml"/>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="cover"/><itemref idref="one"/><itemref idref="nav" linear="no"/><itemref idref="two"/></spine>
</package>"""
DOCTYPE = '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">'
PARTS = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/book.opf": PACKAGE,
    "OEBPS/cover.xhtml": "<html><body><img src='a.png' alt='cover'/></body></html>",
    "OEBPS/text/ch1.xhtml": f"<?xml version='1.0'?>{DOCTYPE}<html><h1>I</h1><p>Il \u00e9tait une fois.</p></html>",
    "OEBPS/text/ch 2.xhtml": "<html><body><h1>II</h1><p>Et puis &amp; fin.</p></body></html>",
    "OEBPS/nav.xhtml": "<html><body>contents</body></html>",
}


def epub(path, **changes):
    parts = {**PARTS, **changes.pop("parts", {})}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            if text is not None:
                archive.writestr(name, text)
    return path


def read(path, **settings):
    reader = build_reader(SourceConfig(name="books", kind="books", path=str(path), **settings))
    return list(reader()), reader.stats


def test_gutenberg_header_and_licence_go(tmp_path):
    (tmp_path / "tale.txt").write_text(GUTENBERG.replace("\n", "\r\n"))
    ((document,), _) = read(tmp_path)
    assert document.text == "CHAPTER I\n\nOnce upon a time."
    assert (document.metadata["title"], document.metadata["author"]) == ("A Tale", "A. Writer")
    assert (document.metadata["license"], document.metadata["language"]) == ("public-domain", "en")
    ((document,), _) = read(tmp_path, options={"gutenberg": False})
    assert "Terms of use" in document.text
    assert strip_gutenberg("plain text") == ("plain text", {})


def test_a_book_in_an_old_encoding(tmp_path):
    (tmp_path / "old.txt").write_bytes("Le caf\u00e9 \u00e9tait ferm\u00e9 \u00e0 No\u00ebl.\n".encode("latin-1") * 20)
    ((document,), _) = read(tmp_path)
    assert "caf\u00e9 \u00e9tait ferm\u00e9" in document.text


def test_an_epub_in_the_order_of_its_spine(tmp_path):
    epub(tmp_path / "b.epub")
    ((document,), stats) = read(tmp_path)
    assert " ".join(document.text.split()) == "I Il \u00e9tait une fois. II Et puis & fin."
    assert (document.metadata["title"], document.metadata["language"]) == ("Une histoire", "fr")
    assert stats["skipped_no_text"].total == 1  # the cover
    chapters, _ = read(tmp_path, options={"unit": "chapter"})
    assert [doc.metadata["chapter"] for doc in chapters] == [1, 2]
    assert [doc.id for doc in chapters] == ["books/b.epub/1", "books/b.epub/2"]


def test_a_missing_chapter_is_a_bad_row(tmp_path):
    epub(tmp_path / "b.epub", parts={"OEBPS/text/ch1.xhtml": None})
    with pytest.raises(UserError, match=r"b\.epub, row 2: 'OEBPS/text/ch1\.xhtml' of the spine is not in"):
        read(tmp_path)
    documents, stats = read(tmp_path, on_bad_row="skip")
    assert len(documents) == 1 and stats["bad_rows_missing_chapter"].total == 1


def test_protected_and_damaged_books(tmp_path):
    encryption = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData><CipherData>'
        '<CipherReference URI="OEBPS/text/ch1.xhtml"/></CipherData></EncryptedData></encryption>'
    )
    path = epub(tmp_path / "b.epub", parts={"META-INF/encryption.xml": encryption})
    with pytest.raises(UserError, match=r"encrypted \(DRM\)"):
        read(path)
    path = epub(tmp_path / "b.epub", parts={"META-INF/container.xml": "<container>"})
    with pytest.raises(UserError, match="no readable EPUB"):
        read(path)
    bomb = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><container>&b;</container>'
    path = epub(tmp_path / "b.epub", parts={"META-INF/container.xml": bomb})
    with pytest.raises(UserError, match="entities of its own is refused"):
        read(path)
    path = epub(tmp_path / "b.epub")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="no zip archive, or cut off"):
        read(path)
    path = epub(tmp_path / "b.epub", parts={"OEBPS/text/ch1.xhtml": "<div>" * 20_000})
    documents, stats = read(path, on_bad_row="skip")
    assert len(documents) == 1 and stats["bad_rows_too_deep"].total == 1
