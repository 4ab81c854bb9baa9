"""HTML pages as a crawl finds them, and the WARC file that holds them (ISO 28500, one gzip member a record).

Content sits in an `<article>`, around it is what extraction must take off: navigation, side bars, cookie notes,
footers. The licence is a `rel="license"` link, as on real sites.
"""

from __future__ import annotations

import html
import io
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hf_pretrain.utils.optional import require


LICENSE_LINKS = {
    "PSF-2.0": "https://docs.python.org/3/license.html",
    "CC-BY-SA-4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
    "MIT": "https://opensource.org/license/mit",
}
# Nominal, so that the same seed gives the same bytes.
CRAWL_DATE = "2025-01-01T00:00:00Z"
_NAVIGATION = ("Home", "About", "Recent changes", "Random page", "Help", "Log in", "Contact", "Search")


@dataclass(frozen=True)
class Page:
    """
    One response of the crawl.

    Args:
        url (`str`): Its address.
        body (`str`): HTML.
        license (`str`, *optional*, defaults to `""`): SPDX name, for the manifest.
        content_type (`str`, *optional*, defaults to `"text/html; charset=utf-8"`): HTTP header.
        status (`str`, *optional*, defaults to `"200 OK"`): HTTP status.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Encoding of the body.
    """

    url: str
    body: str
    license: str = ""
    content_type: str = "text/html; charset=utf-8"
    status: str = "200 OK"
    encoding: str = "utf-8"


def render_page(title: str, article: str, language: str, license_name: str, site: str) -> str:
    """
    A whole page around an article.

    Args:
        title (`str`): Plain title.
        article (`str`): HTML of the article.
        language (`str`): Language code of the `lang` attribute.
        license_name (`str`): Key of `LICENSE_LINKS`.
        site (`str`): Plain name of the site.

    Returns:
        `str`: HTML.
    """
    navigation = "".join(f'<li><a href="/{item.lower().replace(" ", "-")}">{item}</a></li>' for item in _NAVIGATION)
    title, site = html.escape(title), html.escape(site)
    return (
        f'<!DOCTYPE html>\n<html lang="{language}"><head><meta charset="utf-8"><title>{title} - {site}</title>'
        f'<link rel="license" href="{LICENSE_LINKS[license_name]}"><style>nav li {{ display: inline }}</style>'
        f'<script>window.page = {{"ready": true}};</script></head>\n<body><header><h2>{site}</h2></header>'
        f'<nav class="navigation"><ul>{navigation}</ul></nav>\n'
        f"<main><article><h1>{title}</h1>\n{article}\n</article></main>\n"
        f'<aside class="sidebar"><p>See also</p><ul>{navigation}</ul></aside>'
        f'<div class="cookie-banner">This site uses cookies. <a href="/privacy">Privacy policy</a></div>'
        f"<footer><p>{site}</p><ul>{navigation}</ul></footer></body></html>\n"
    )


def paragraphs_html(text: str) -> str:
    """
    Paragraphs of plain text, divided by blank lines.

    Args:
        text (`str`): Plain text.

    Returns:
        `str`: `<p>` elements.
    """
    return "\n".join(
        f"<p>{html.escape(' '.join(part.split()))}</p>" for part in re.split(r"\n\s*\n", text) if part.strip()
    )


def topic_html(text: str) -> str:
    """
    A topic of the Python reference (plain reStructuredText output) as HTML: headings, paragraphs, lists, code.

    Args:
        text (`str`): Text as `help()` shows it.

    Returns:
        `str`: HTML of an article.
    """
    blocks = []
    for block in re.split(r"\n[ \t]*\n", text.strip("\n")):
        lines = block.split("\n")
        if len(lines) == 2 and re.fullmatch(r"[*=~^\-]{3,}", lines[1]):
            blocks.append(f"<h2>{html.escape(lines[0])}</h2>")
        elif lines[0].startswith("   "):
            blocks.append(f"<pre>{html.escape(block)}</pre>")
        elif lines[0].startswith(("* ", "- ")):
            items = re.split(r"(?m)^[*-] ", block)[1:]
            blocks.append(
                "<ul>" + "".join(f"<li>{html.escape(' '.join(item.split()))}</li>" for item in items) + "</ul>"
            )
        else:
            blocks.append(f"<p>{html.escape(' '.join(block.split()))}</p>")
    return "\n".join(blocks)


def recipe_html(ingredients: list[str], steps: list[str]) -> str:
    """
    A recipe as an article.

    Args:
        ingredients (`list[str]`): Ingredients.
        steps (`list[str]`): Steps.

    Returns:
        `str`: HTML of an article.
    """
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in ingredients)
    numbered = "".join(f"<li>{html.escape(step)}</li>" for step in steps)
    return f"<ul>{listed}</ul>\n<ol>{numbered}</ol>"


def write_warc(path: Path, pages: Iterable[Page], software: str) -> dict[str, int]:
    """
    Write pages as WARC 1.1 response records.

    Args:
        path (`Path`): File to write (`.warc.gz`).
        pages (`Iterable[Page]`): Pages.
        software (`str`): What wrote them, for the `warcinfo` record.

    Returns:
        `dict[str, int]`: `documents` (HTML pages with status 200) and `bytes` (of their bodies).
    """
    require("warcio", "corpus", "writing WARC files")
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    documents = size = 0
    with open(path, "wb") as stream:
        writer = WARCWriter(stream, gzip=True, warc_version="1.1")
        info = f"software: {software}\r\nformat: WARC File Format 1.1\r\n".encode()
        writer.write_record(
            writer.create_warc_record(
                "",
                "warcinfo",
                payload=io.BytesIO(info),
                length=len(info),
                warc_headers_dict=_headers(f"info:{software}"),
            )
        )
        for number, page in enumerate(pages):
            body = page.body.encode(page.encoding, "xmlcharrefreplace")
            kind = page.content_type.partition(";")[0]
            http = [("Content-Type", page.content_type), ("Content-Length", str(len(body))), ("Server", "nginx")]
            writer.write_record(
                writer.create_warc_record(
                    page.url,
                    "response",
                    payload=io.BytesIO(body),
                    length=len(body),
                    http_headers=StatusAndHeaders(page.status, http, protocol="HTTP/1.1"),
                    warc_headers_dict={**_headers(f"{number}:{page.url}"), "WARC-Identified-Payload-Type": kind},
                )
            )
            if kind == "text/html" and page.status.startswith("200"):
                documents += 1
                size += len(body)
    return {"documents": documents, "bytes": size}


def _headers(key: str) -> dict[str, str]:
    return {"WARC-Record-ID": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, key)}>", "WARC-Date": CRAWL_DATE}
