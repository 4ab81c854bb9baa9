"""Wikipedia dumps: a small dump in the true format, and everything that may be wrong with one."""

import bz2
import gzip
from xml.sax.saxutils import escape

import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.corpus.ingest.wikitext import wikitext_to_text
from hf_pretrain.utils.errors import UserError


pytest.importorskip("mwparserfromhell")
pytest.importorskip("defusedxml")

ARTICLE = """{{Short description|Political philosophy}}
{{Infobox thing|a=[[b]]|c={{nested|x}}}}
'''Anarchism''' is a [[political philosophy|philosophy]] ({{lang-el|word}}) of {{convert|5|km}}.<ref>{{x}}</ref>
[[File:A.jpg|thumb|A [[link]]]] It has a formula <math>x^2 < 3</math>&nbsp;and code <code>a = 1</code>.<!-- no -->

== History ==
* First [[item]]
* Second item
{| class="wikitable"
! Year !! Event
|-
| 1900 || A [[strike]]
|}

=== Early ===
Some early history [https://example.org with a source].

== References ==
{{reflist}}
Not prose.

=== Below ===
Not this either.

== Legacy ==
The end. [[Category:Politics]] [[de:Anarchismus]]
__NOTOC__"""


def page(title, text, ns=0, number=1, extra="", model="wikitext"):
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{ns}</ns>
    <id>{number}</id>{extra}
    <revision>
      <id>99</id>
      <timestamp>2024-05-01T00:00:00Z</timestamp>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="9" xml:space="preserve">{escape(text)}</text>
    </revision>
  </page>
"""


def dump(*pages):
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="fr">\n'
        "  <siteinfo>\n    <sitename>Wikip\u00e9dia</sitename>\n"
        "    <base>https://fr.wikipedia.org/wiki/Wikip%C3%A9dia:Accueil</base>\n  </siteinfo>\n"
        + "".join(pages)
        + "</mediawiki>\n"
    ).encode()


PAGES = (
    page("Anarchism & co", ARTICLE),
    page("Anarchy", "#REDIRECT [[Anarchism]]", number=2, extra='\n    <redirect title="Anarchism" />'),
    page("Old", "#REDIRECTION [[Anarchism]]", number=3),
    page("Talk:Anarchism", "chatter", ns=1, number=4),
    page("Data", "{}", number=5, model="json"),
    page("Only a box", "{{Infobox|a=1}}", number=6),
    page("\u5317\u4eac", "'''\u5317\u4eac'''\u662f\u9996\u90fd\u3002", number=7),
)


def read(path, **settings):
    reader = build_reader(SourceConfig(name="wiki", kind="wikipedia", path=str(path), **settings))
    return list(reader()), reader.stats


@pytest.mark.parametrize(
    ("name", "pack"), [("d.xml", bytes), ("d.xml.bz2", bz2.compress), ("d.xml.gz", gzip.compress)]
)
def test_articles_of_a_dump_and_what_is_left_out(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(dump(*PAGES)))
    documents, stats = read(tmp_path)
    first, last = documents
    assert first.id == "wiki/1" and first.metadata["title"] == "Anarchism & co"
    assert first.metadata["url"] == "https://fr.wikipedia.org/wiki/Anarchism_%26_co"
    assert (first.metadata["language"], first.metadata["license"], first.metadata["row"]) == ("fr", "CC-BY-SA-4.0", 0)
    assert last.text == "\u5317\u4eac\n\n\u5317\u4eac\u662f\u9996\u90fd\u3002" and last.metadata["row"] == 6
    left_out = {name: stats[f"skipped_{name}"].total for name in ("redirect", "namespace", "model", "no_prose")}
    assert left_out == {"redirect": 2, "namespace": 1, "model": 1, "no_prose": 1}
    assert stats["skipped_rows"].total + len(documents) == len(PAGES)


def test_prose_stays_and_markup_goes():
    text = wikitext_to_text(ARTICLE, "drop", ["References"])
    assert text == (
        "Anarchism is a philosophy (word) of 5 km.\n"
        "It has a formula $x^2 < 3$ and code a = 1.\n\n"
        "History\n\n- First item\n- Second item\n\n"
        "Early\n\nSome early history with a source.\n\n"
        "Legacy\n\nThe end."
    )


def test_tables_as_rows():
    assert "Year | Event\n1900 | A strike" in wikitext_to_text(ARTICLE, "rows")


def test_deep_nesting_of_templates_and_tags_is_no_traceback():
    assert wikitext_to_text("a " + "{{x|" * 3000 + "y" + "}}" * 3000) is not None
    assert wikitext_to_text("a " + "<b>" * 3000 + "y" + "</b>" * 3000) is not None
    assert wikitext_to_text("a " + "[[a|" * 3000 + "y" + "]]" * 3000) is not None
    assert wikitext_to_text("{|\n|-\n|" * 500).strip() is not None


def test_a_broken_page_in_the_middle_is_one_bad_row(tmp_path):
    broken = page("Broken", "text", number=2).replace("</title>", "")
    cut = page("Cut", "text", number=3).replace("  </page>\n", "")
    (tmp_path / "d.xml").write_bytes(dump(page("A", "one"), broken, cut, page("B", "two", number=4)))
    with pytest.raises(UserError, match=r"d\.xml, row 2: no well-formed XML"):
        read(tmp_path)
    documents, stats = read(tmp_path, on_bad_row="skip")
    assert [doc.metadata["title"] for doc in documents] == ["A", "B"]
    assert stats["bad_rows_broken_xml"].total == 2


def test_an_entity_bomb_is_refused(tmp_path):
    bomb = page("Bomb", "x").replace("<title>Bomb", "<title>&lol9;")
    (tmp_path / "d.xml").write_bytes(
        b'<!DOCTYPE x [<!ENTITY lol "ha"><!ENTITY lol9 "&lol;&lol;">]>\n' + dump(bomb, page("A", "one"))
    )
    documents, stats = read(tmp_path, on_bad_row="skip")
    assert [doc.metadata["title"] for doc in documents] == ["A"] and stats["bad_rows_broken_xml"].total == 1


@pytest.mark.parametrize("pack", [bytes, bz2.compress])
def test_a_dump_cut_off_keeps_what_was_read(tmp_path, pack):
    bodies = [f"text {n} " + "".join(chr(97 + n * k % 26) for k in range(999)) for n in range(40)]
    pages = [page(f"Page {n}", body, number=n) for n, body in enumerate(bodies)]
    path = tmp_path / ("d.xml" if pack is bytes else "d.xml.bz2")
    # Two bzip2 streams one after the other, as in the multistream dumps.
    data = dump(*pages)
    half = len(data) // 2
    path.write_bytes((pack(data[:half]) + pack(data[half:]))[: -1500 if pack is bytes else -500])
    with pytest.raises(UserError, match=r"cut off in page \d+.*on_bad_file: skip"):
        read(path)
    documents, stats = read(path, on_bad_file="skip")
    assert 15 <= len(documents) < 40 and stats["bad_files"].total == 1


def test_other_files_are_named(tmp_path):
    (tmp_path / "d.xml").write_bytes(b"<html><p>no dump</p></html>")
    with pytest.raises(UserError, match="holds no page of a MediaWiki dump"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"options: .*namespaces"):
        read(tmp_path, options={"namespace": [1]})
