"""HTML fragments and chapters to text: posts of forums, files of an EPUB. No navigation to take off, code is kept."""

from __future__ import annotations

from hf_pretrain.corpus.ingest.extraction import MAX_DEPTH, nesting_depth
from hf_pretrain.utils.optional import require


def fragment_text(html: str, what: str) -> str:
    """
    Text of a fragment, by resiliparse; code keeps its line breaks.

    Args:
        html (`str`): The fragment.
        what (`str`): What is being read, for the message of a missing package.

    Returns:
        `str`: its text, `""` where there is none.

    Raises:
        ValueError: If it nests deeper than any page does.
    """
    if nesting_depth(html) > MAX_DEPTH:
        raise ValueError(f"HTML nested deeper than {MAX_DEPTH}")
    html2text = require("resiliparse.extract.html2text", "corpus", what)
    data = html.encode("utf-8", "replace").decode()  # the parser refuses lone surrogates
    return html2text.extract_plain_text(
        data, preserve_formatting=True, main_content=False, list_bullets=True, alt_texts=False, links=False
    ).strip()
