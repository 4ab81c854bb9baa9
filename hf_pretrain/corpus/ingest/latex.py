"""LaTeX sources of a paper to one text: files put together, comments and preamble off, the author's macros expanded.

The rules of the LaTeX part of RedPajama and Proof-Pile (arXiv 2310.10631): models read LaTeX, so the body stays LaTeX
unless plain text is asked for (then pylatexenc does it, formulas staying as they are). Expansion is bounded: a macro
that doubles itself thirty times is left alone.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

from hf_pretrain.utils.optional import require


MAX_BYTES = 20_000_000
_MAX_INPUTS, _ROUNDS = 500, 4
_INPUT = re.compile(r"\\(?:input|include|subfile)\s*(?:\{([^{}]{1,200})\}|([^\s{}\\%]{1,200}))")
_VERBATIM = re.compile(r"\\begin\{(verbatim\*?|lstlisting|minted|alltt)\}.*?\\end\{\1\}", re.S)
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%.*")
_BLOCKS = re.compile(r"\\begin\{comment\}.*?\\end\{comment\}|\\iffalse\b.*?\\fi\b", re.S)
_BODY = re.compile(r"\\begin\s*\{document\}(.*?)(?:\\end\s*\{document\}|\Z)", re.S)
_BIBLIOGRAPHY = re.compile(r"\\begin\{thebibliography\}.*?(?:\\end\{thebibliography\}|\Z)", re.S)
_DEFINITION = re.compile(
    r"\\(?:(?:re|provide)?newcommand\*?|providecommand\*?|renewcommand\*?|DeclareRobustCommand\*?)\s*"
    r"\{?\s*\\([A-Za-z]+)\s*\}?\s*(?:\[(\d)\])?\s*(?=\{)|\\def\s*\\([A-Za-z]+)\s*(?=\{)|"
    r"\\DeclareMathOperator\*?\s*\{?\s*\\([A-Za-z]+)\s*\}?\s*(?=\{)"
)


def flatten(files: dict[str, str]) -> tuple[str, str, int]:
    """
    Put the files of a paper together.

    Args:
        files (`dict[str, str]`): Text of each `.tex` (and `.bbl`) file by its name in the archive.

    Returns:
        `tuple[str, str, int]`: the text without comments, the name of its main file, and the number of `\\input` that
        have no file.

    Raises:
        ValueError: If no file is the main one, or the whole is larger than `MAX_BYTES`.
    """
    main = _main_file(files)
    missing, used = 0, 0

    def include(name: str, above: tuple[str, ...]) -> str:
        def put(match: re.Match[str]) -> str:
            nonlocal missing, used
            target = (match[1] or match[2]).strip().strip('"')
            used += 1
            if used > _MAX_INPUTS or len(above) > 10:
                missing += 1
                return ""
            for root in (dirname(main), dirname(name)):
                for ending in ("", ".tex"):
                    found = normpath(join(root, target + ending))
                    if found in files and found not in above:
                        return include(found, (*above, found))
            missing += 1
            return ""

        text = _INPUT.sub(put, without_comments(files[name]))
        if len(text) > MAX_BYTES:
            raise ValueError(f"the paper has more than {MAX_BYTES} characters")
        return text

    return include(main, (main,)), main, missing


def _main_file(files: dict[str, str]) -> str:
    ranked = []
    for name, text in files.items():
        if name.endswith(".bbl"):
            continue
        whole = "\\begin{document}" in text
        head = bool(re.search(r"^[^%\n]*\\document(?:class|style)\b", text, re.M))
        if whole or head:
            # A package's template or a supplement is smaller than the paper.
            ranked.append((whole and head, whole, len(text), name))
    if not ranked:
        plain = [name for name in files if not name.endswith(".bbl")]
        if len(plain) == 1:
            return plain[0]
        raise ValueError("no file holds \\documentclass or \\begin{document}")
    return max(ranked)[-1]


def without_comments(text: str) -> str:
    """
    Take off comments; those of verbatim text stay.

    Args:
        text (`str`): LaTeX.

    Returns:
        `str`: LaTeX.
    """
    parts, place = [], 0
    for block in _VERBATIM.finditer(text):
        parts += [_strip(text[place : block.start()]), block[0]]
        place = block.end()
    parts.append(_strip(text[place:]))
    return "".join(parts)


def _strip(text: str) -> str:
    text = _BLOCKS.sub("", text)
    # A line that is nothing but a comment goes with its end, as TeX reads it.
    text = re.sub(r"(?m)^[ \t]*%.*\n?", "", text)
    return _COMMENT.sub(r"\1", text)


def body_of(text: str, bibliography: bool = False) -> tuple[str, str]:
    """
    The part of a paper that is printed, with the author's macros expanded.

    Args:
        text (`str`): LaTeX of [`flatten`].
        bibliography (`bool`, *optional*, defaults to `False`): Keep the list of references.

    Returns:
        `tuple[str, str]`: LaTeX between `\\begin{document}` and `\\end{document}`, and the title.
    """
    document = _BODY.search(text)
    preamble, body = (text[: document.start()], document[1]) if document else ("", text)
    macros = _macros(preamble)
    if not document:
        body = re.sub(r"\\document(?:class|style)\b.*", "", body)
    if not bibliography:
        body = _BIBLIOGRAPHY.sub("", body)
        body = re.sub(r"\\bibliography(?:style)?\s*\{[^{}]*\}", "", body)
    title = _title(body) or _title(preamble)
    body = expand(body, macros)
    title = " ".join(expand(title, macros).replace("\\\\", " ").split())
    return re.sub(r"\n[ \t]*(?:\n[ \t]*){2,}", "\n\n", body).strip(), title


def _title(text: str) -> str:
    found = re.search(r"\\title\s*(?:\[[^\[\]]*\])?\s*(?=\{)", text)
    return _argument(text, found.end())[0] if found else ""


def _argument(text: str, place: int) -> tuple[str, int]:
    """Content of the braces that open at a place, and where they end; `("", place)` where they never close."""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.S).finditer(text, place):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                return text[place + 1 : found.start()], found.end()
    return "", place


def _macros(preamble: str) -> dict[str, tuple[int, str]]:
    macros = {}
    for found in _DEFINITION.finditer(preamble):
        content, end = _argument(preamble, found.end())
        if end == found.end() or len(content) > 2000:
            continue
        if found[4]:
            macros[found[4]] = (0, f"\\operatorname{{{content}}}")
        else:
            macros[found[1] or found[3]] = (int(found[2] or 0), content)
    return macros


def expand(text: str, macros: dict[str, tuple[int, str]]) -> str:
    """
    Replace macros by what they stand for; a few rounds, for macros use macros.

    Args:
        text (`str`): LaTeX.
        macros (`dict[str, tuple[int, str]]`): Number of arguments and content by name.

    Returns:
        `str`: LaTeX; the given one if it would grow beyond four times its size and a megabyte.
    """
    # One that calls itself would never end.
    macros = {name: macro for name, macro in macros.items() if not re.search(rf"\\{name}(?![A-Za-z])", macro[1])}
    if not macros:
        return text
    limit = 4 * len(text) + 1_000_000
    names = re.compile(
        r"\\(" + "|".join(sorted(map(re.escape, macros), key=len, reverse=True)) + r")(?![A-Za-z])[ \t]*"
    )
    result = text
    for _ in range(_ROUNDS):
        parts, place, size = [], 0, 0
        for found in names.finditer(result):
            if found.start() < place:
                continue
            count, content = macros[found[1]]
            end, values = found.end(), []
            for _ in range(count):
                value, after = _argument(result, end) if result[end : end + 1] == "{" else ("", end)
                if after == end:
                    break
                values.append(value)
                end = after
            if len(values) < count:
                continue
            for number, value in enumerate(values, 1):
                content = content.replace(f"#{number}", value)
            before = result[place : found.start()]
            # What follows must not become part of the last command of the macro.
            gap = " " if re.search(r"\\[A-Za-z]+\Z", content) and result[end : end + 1].isalpha() else ""
            parts += [before, content, gap or (" " if result[end - 1] in " \t" and not count else "")]
            size += len(before) + len(content) + 1
            if size > limit:
                return text
            place = end
        if not parts:
            return result
        result = "".join([*parts, result[place:]])
    return result


def latex_to_text(latex: str) -> str:
    """
    Plain text of LaTeX, formulas left as they are.

    Args:
        latex (`str`): LaTeX.

    Returns:
        `str`: text.

    Raises:
        ValueError: If it cannot be parsed.
    """
    latex2text = require("pylatexenc.latex2text", "sources", "reading LaTeX as text")
    from pylatexenc.latexwalker import LatexWalkerError

    converter = latex2text.LatexNodes2Text(math_mode="verbatim", strict_latex_spaces="based-on-source")
    try:
        text = converter.latex_to_text(latex, tolerant_parsing=True)
    except (LatexWalkerError, RecursionError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"LaTeX that cannot be parsed ({type(error).__name__})") from error
    lines = [line.strip() for line in text.replace("\u00a7.\u00a7", "").split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
