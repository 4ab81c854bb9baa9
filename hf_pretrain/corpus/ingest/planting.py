"""Benchmark items hidden in the sample crawl, so that decontamination has something real to find.

Leaks look alike nowhere: a forum quotes an item word by word, another wraps its lines, shouts it or escapes it twice,
a long page holds one in the middle, a repository has a copy with its solution, an instruction set asks it. Which item
went where is returned and goes into the sample's manifest, for measuring recall.
"""

from __future__ import annotations

import html
import random
import textwrap
from dataclasses import dataclass
from typing import Any

from hf_pretrain.corpus.ingest.instructions import chat_row
from hf_pretrain.corpus.ingest.pages import Page, paragraphs_html, render_page, topic_html


PLANTED_SHARE = 0.1
# Repeated until all chosen items have a place.
FORMS = (
    "verbatim",
    "rewrapped",
    "uppercase",
    "escaped",
    "code",
    "diluted",
    "verbatim",
    "code",
    "instruction",
    "rewrapped",
)


@dataclass(frozen=True)
class Planted:
    """
    Where one item went.

    Args:
        benchmark (`str`): Benchmark.
        item_id (`str`): The item.
        form (`str`): One of `FORMS`.
        file (`str`): File of the sample.
        document (`str`): URL or id of the document in it.
    """

    benchmark: str
    item_id: str
    form: str
    file: str
    document: str


def choose_items(items: list[dict[str, Any]], rng: random.Random) -> list[tuple[dict[str, Any], str]]:
    """
    Items to plant and their forms.

    Args:
        items (`list[dict]`): Benchmark rows.
        rng (`random.Random`): Chooses.

    Returns:
        `list[tuple[dict, str]]`: item and form. Items with braces go into code alone, since C4 drops pages that hold
        one.
    """
    chosen = rng.sample(items, max(1, round(PLANTED_SHARE * len(items))))
    forms = [FORMS[number % len(FORMS)] for number in range(len(chosen))]
    plain = [item for item in chosen if "{" not in item["question"]]
    braced = [item for item in chosen if "{" in item["question"]]
    pairs = []
    for form in sorted(forms, key=lambda form: form not in ("code", "instruction")):
        pool = braced if (form in ("code", "instruction") and braced) or not plain else plain
        pairs.append((pool.pop(0), form))
    return pairs


def forum_page(item: dict[str, Any], form: str, number: int, replies: list[str]) -> Page:
    """
    A forum thread that quotes an item.

    Args:
        item (`dict`): Benchmark row.
        form (`str`): How it is quoted: `"verbatim"`, `"rewrapped"`, `"uppercase"` or `"escaped"`.
        number (`int`): Number of the thread.
        replies (`list[str]`): Paragraphs of prose around it.

    Returns:
        `Page`: the page.
    """
    question = item["question"].strip()
    quoted = {
        "verbatim": lambda: f"<pre><code>{html.escape(question)}\n{html.escape(item['answer'].rstrip())}</code></pre>",
        "rewrapped": lambda: (
            f"<p>{html.escape(textwrap.fill(' '.join(question.split()), 47)).replace(chr(10), '<br>' + chr(10))}</p>"
        ),
        "uppercase": lambda: f"<blockquote><p>{html.escape(' '.join(question.split()).upper())}</p></blockquote>",
        "escaped": lambda: f"<p>{html.escape(html.escape(' '.join(question.split())))}</p>",
    }[form]()
    half = len(replies) // 2
    before, after = (paragraphs_html("\n\n".join(part)) for part in (replies[:half], replies[half:]))
    title = f"Exercise {number}: how would you solve this?"
    asked = "<p>This is the exercise that I was given, and I would like to know how you would go about it.</p>"
    article = f"{before}\n{asked}\n{quoted}\n{after}"
    body = render_page(title, article, "en", "MIT", "Programming forum")
    return Page(f"https://forum.example.org/t/exercise-{number}", body, "MIT")


def diluted_page(item: dict[str, Any], name: str, text: str) -> Page:
    """
    An item in the middle of a long page of the Python reference.

    Args:
        item (`dict`): Benchmark row.
        name (`str`): Name of the topic.
        text (`str`): Text of the topic.

    Returns:
        `Page`: the page.
    """
    blocks = topic_html(text).split("\n<p>")
    blocks.insert(max(1, len(blocks) // 2), f"{html.escape(' '.join(item['question'].split()))}</p>")
    body = render_page(name, "\n<p>".join(blocks), "en", "PSF-2.0", "Notes on Python")
    return Page(f"https://notes.example.org/python/{name.lower()}.html", body, "PSF-2.0")


def insert_into_code(text: str, item: dict[str, Any]) -> str:
    """
    A source file with an item and its solution as one more function.

    Args:
        text (`str`): Source file.
        item (`dict`): Benchmark row.

    Returns:
        `str`: the file with the function before its last top-level definition, or at its end.
    """
    function = f"{item['question'].strip()}\n{item['answer'].rstrip()}\n"
    position = max(text.rfind("\n\n\ndef "), text.rfind("\n\n\nclass "))
    if position < 0:
        return f"{text.rstrip()}\n\n\n{function}"
    return f"{text[: position + 3]}{function}\n\n{text[position + 3 :]}"


def instruction_row(item: dict[str, Any]) -> dict[str, Any]:
    """
    An item as an instruction.

    Args:
        item (`dict`): Benchmark row.

    Returns:
        `dict`: instruction row.
    """
    turns = [f"Complete this function:\n\n{item['question'].strip()}", item["answer"].rstrip()]
    return chat_row(f"exercise/{item['item_id'].replace('/', '-').lower()}", turns, "human-eval", "MIT", "en")
