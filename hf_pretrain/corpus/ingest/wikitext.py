"""Wikitext to plain text on the tree of mwparserfromhell.

What is kept is prose: paragraphs, headings, lists, formulas and code. Templates are left out, for their text is on
other pages, but for the few that stand in the middle of sentences (languages, quotations, units). Files, categories,
links to other languages, references, comments and galleries are left out; tables as asked.
"""

from __future__ import annotations

import re
from typing import Any

from hf_pretrain.utils.optional import require


# Templates whose argument is the text of the sentence: name -> number of the argument (from the end where negative).
_INLINE = {
    "lang": 1,
    "nowrap": 0,
    "nobr": 0,
    "em": 0,
    "strong": 0,
    "small": 0,
    "quote": 0,
    "blockquote": 0,
    "transl": -1,
}
_INLINE |= {"transliteration": -1, "abbr": 0, "sic": 0, "math": 0, "mvar": 0, "code": 0, "kbd": 0, "not a typo": 0}
_JOINED = ("convert", "cvt")
_SKIPPED_TAGS = frozenset("ref references gallery timeline score imagemap templatestyles style script div".split())
_SKIPPED_LINKS = frozenset(
    "file image category media datei bild kategorie fichier catégorie archivo imagen categoría ficheiro imagem "
    "categoria файл изображение категория ファイル 画像 カテゴリ 文件 图像 分类".split()
)
_MAX_DEPTH = 40


def wikitext_to_text(wikitext: str, tables: str = "drop", drop_sections: list[str] | None = None) -> str:
    """
    Text of an article.

    Args:
        wikitext (`str`): Its source.
        tables (`str`, *optional*, defaults to `"drop"`): `"drop"` or `"rows"`.
        drop_sections (`list[str]`, *optional*): Titles of sections to leave out, with all below them.

    Returns:
        `str`: paragraphs divided by empty lines.

    Raises:
        ValueError: If the parser gives up on it.
    """
    parser = require("mwparserfromhell", "sources", "reading wikitext")
    try:
        code = parser.parse(_without_magic_words(wikitext), skip_style_tags=False)
        text = _render(_kept_nodes(code, {title.casefold() for title in drop_sections or []}), tables, 0)
    except (parser.parser.ParserError, RecursionError) as error:
        raise ValueError(f"wikitext that cannot be parsed ({type(error).__name__})") from error
    return _tidy(text)


def _without_magic_words(wikitext: str) -> str:
    return re.sub(r"__[A-Z]{3,20}__", "", wikitext)


def _kept_nodes(code: Any, dropped: set[str]) -> list[Any]:
    """Nodes outside the sections that are left out; a section ends with the next heading of its level or above."""
    nodes, level = [], 0
    for node in code.nodes:
        if type(node).__name__ == "Heading":
            if level and node.level <= level:
                level = 0
            if not level and str(node.title.strip_code()).strip().casefold() in dropped:
                level = node.level
        if not level:
            nodes.append(node)
    return nodes


def _render(nodes: Any, tables: str, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return ""
    return "".join(_node(node, tables, depth + 1) for node in nodes)


def _node(node: Any, tables: str, depth: int) -> str:
    kind = type(node).__name__
    if kind == "Text":
        return str(node.value)
    if kind == "Wikilink":
        return _link(node, tables, depth)
    if kind == "Heading":
        return f"\n\n{_render(node.title.nodes, tables, depth).strip()}\n\n"
    if kind == "Tag":
        return _tag(node, tables, depth)
    if kind == "Template":
        return _template(node, tables, depth)
    if kind == "ExternalLink":
        return _render(node.title.nodes, tables, depth) if node.title is not None else ""
    if kind == "HTMLEntity":
        try:
            return node.normalize() or ""
        except (ValueError, OverflowError):
            return ""
    return ""  # comments, arguments of templates


def _link(node: Any, tables: str, depth: int) -> str:
    title = str(node.title).strip()
    prefix, colon, _ = title.partition(":")
    # ":Category:X" is a link to the category, "Category:X" puts the page into it, "de:X" is the page in German.
    if colon and prefix:
        name = prefix.strip().casefold()
        if name in _SKIPPED_LINKS or (re.fullmatch(r"[a-z]{2,3}(-[a-z]+)?", prefix) and node.text is None):
            return ""
    if node.text is not None:
        return _render(node.text.nodes, tables, depth)
    return title.lstrip(":").partition("#")[0] or title


def _tag(node: Any, tables: str, depth: int) -> str:
    name = str(node.tag).strip().lower()
    if name in _SKIPPED_TAGS:
        return ""
    if name == "table":
        return _table(node, tables, depth) if tables == "rows" else ""
    if name == "li":
        markup = str(node.wiki_markup or "")
        return "- " if markup in ("*", "#") else ""
    if name in ("dt", "dd"):
        return ""
    if name in ("br", "hr"):
        return "\n"
    if name in ("math", "chem"):
        return f"${str(node.contents).strip()}$"
    if name in ("nowiki", "pre", "syntaxhighlight", "source", "poem"):
        body = str(node.contents).strip("\n")
        return body if name == "nowiki" else f"\n\n{body}\n\n"
    return _render(node.contents.nodes, tables, depth) if node.contents is not None else ""


def _table(node: Any, tables: str, depth: int) -> str:
    rows: list[list[str]] = [[]]
    for child in node.contents.nodes if node.contents is not None else []:
        name = str(child.tag).lower() if type(child).__name__ == "Tag" else ""
        cells = child.contents.nodes if name == "tr" and child.contents is not None else [child]
        if name == "tr":
            rows.append([])
        for cell in cells:
            if type(cell).__name__ == "Tag" and str(cell.tag).lower() in ("td", "th") and cell.contents is not None:
                rows[-1].append(" ".join(_render(cell.contents.nodes, tables, depth).split()))
    lines = [" | ".join(row) for row in rows if any(row)]
    return "\n\n" + "\n".join(lines) + "\n\n" if lines else ""


def _template(node: Any, tables: str, depth: int) -> str:
    name = str(node.name).strip().casefold()
    values = [parameter.value for parameter in node.params if not parameter.showkey]
    if name.startswith("lang-") and values:
        return _render(values[0].nodes, tables, depth)
    if name in _JOINED and len(values) > 1:
        return " ".join(_render(value.nodes, tables, depth).strip() for value in values[:2])
    place = _INLINE.get(name)
    if place is None or not values or place >= len(values):
        return ""
    return _render(values[place].nodes, tables, depth)


def _tidy(text: str) -> str:
    text = text.replace("\u00a0", " ")
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r"\( ?[;,]? ?\)", "", text)  # brackets that held a template
    text = re.sub(r" +([,.;:!?])", r"\1", text)
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line not in ("-", ":", "*", "#")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
