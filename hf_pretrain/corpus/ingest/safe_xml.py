"""XML of strangers: no entities of their own, no external files, a bound on depth; a fault is one `ValueError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


MAX_DEPTH = 200


def parse_xml(data: bytes, allow_doctype: bool = False) -> Element:
    """
    Parse a small XML document.

    Args:
        data (`bytes`): The document.
        allow_doctype (`bool`, *optional*, defaults to `False`): Whether it may name a document type; entities that
            it declares are refused either way.

    Returns:
        `Element`: the root.

    Raises:
        ValueError: If it is no well-formed XML, declares entities (as the "billion laughs" do), or nests too deeply.
    """
    tree = require("defusedxml.ElementTree", "sources", "reading XML")
    from defusedxml.common import DefusedXmlException

    try:
        root = tree.fromstring(data, forbid_dtd=not allow_doctype, forbid_entities=True, forbid_external=True)
    except tree.ParseError as error:
        raise ValueError(f"no well-formed XML ({error})") from error
    except DefusedXmlException as error:
        raise ValueError(
            f"XML with a document type or entities of its own is refused ({type(error).__name__})"
        ) from error
    except RecursionError as error:
        raise ValueError("XML nested too deeply") from error
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"XML nested deeper than {MAX_DEPTH}")
        level = [child for element in level for child in element]
    return root


def local_name(tag: str) -> str:
    """
    A tag without its namespace.

    Args:
        tag (`str`): `"{http://...}title"` or `"title"`.

    Returns:
        `str`: `"title"`.
    """
    return tag.rpartition("}")[2]
