"""The pieces that a page is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name (`str`): Its head.
        numeric (`bool`, *optional*, defaults to `False`): Whether it is aligned to the right.
    """

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Args:
        columns (`Sequence[Column]`): Columns.
        rows (`Sequence[Sequence[str]]`): Rows; a row whose first cell is in `totals` is set in bold.
        totals (`Sequence[str]`, *optional*): First cells of total rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    totals: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A chart with its words and numbers.

    Args:
        title (`str`): What it says.
        svg (`Any`): Drawings, marked as safe HTML.
        caption (`str`): How to read it, with units and conventions.
        legend (`Sequence[tuple[str, str, bool]]`, *optional*): Name, colour variable, and whether it is drawn hollow.
        table (`Table`, *optional*): The numbers.
    """

    title: str
    svg: Any
    caption: str
    legend: Sequence[tuple[str, str, bool]] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Block:
    """A piece of a section.

    Args:
        kind (`str`): `text`, `note`, `quote`, `figure`, `table` or `details`.
        text (`str`, *optional*): Of a text, note or quote.
        figure (`Figure`, *optional*): Of a figure.
        table (`Table`, *optional*): Of a table or details.
        title (`str`, *optional*): Above a table, or what is clicked to open details.
    """

    kind: str
    text: str = ""
    figure: Figure | None = None
    table: Table | None = None
    title: str = ""


@dataclass
class Section:
    """A section of the page.

    Args:
        id (`str`): Anchor.
        title (`str`): Head line.
        blocks (`list[Block]`): Pieces; a section without any is left out.
    """

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Tile:
    """A headline number.

    Args:
        name (`str`): What it is.
        value (`str`): The number.
        unit (`str`, *optional*): Its unit.
        detail (`str`, *optional*): Context.
    """

    name: str
    value: str
    unit: str = ""
    detail: str = ""
