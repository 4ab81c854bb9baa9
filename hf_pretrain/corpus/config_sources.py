"""What each kind of source may be told beyond the common settings: `options` of a source in the recipe.

    - {name: qa, kind: stackexchange, path: dumps/, options: {min_score: 3, max_answers: 5}}

One small frozen dataclass a kind; `options_of` turns the mapping into it, so an unknown key or a wrong type is one
line in a dry run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_pretrain.corpus.config_checks import at_least as _at_least
from hf_pretrain.corpus.config_checks import choice as _choice
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


@dataclass(frozen=True)
class WikipediaOptions:
    """
    MediaWiki dumps.

    Args:
        namespaces (`list[int]`, *optional*, defaults to `[0]`): Namespaces to keep; 0 holds articles.
        tables (`str`, *optional*, defaults to `"drop"`): `"drop"`, or `"rows"`: a line a row, cells divided by ` | `.
        drop_sections (`list[str]`, *optional*): Sections left out with all below them, by title in any case.
    """

    namespaces: list[int] = field(default_factory=lambda: [0])
    tables: Literal["drop", "rows"] = "drop"
    drop_sections: list[str] = field(
        default_factory=lambda: [
            "References",
            "External links",
            "See also",
            "Further reading",
            "Notes",
            "Bibliography",
        ]
    )

    def __post_init__(self) -> None:
        _choice("tables", self.tables, ("drop", "rows"))


@dataclass(frozen=True)
class ArxivOptions:
    """
    LaTeX sources.

    Args:
        output (`str`, *optional*, defaults to `"latex"`): `"latex"` (body of the document, comments off, the author's
            macros expanded) or `"text"` (markup turned to text, formulas left as LaTeX).
        bibliography (`bool`, *optional*, defaults to `False`): Keep the list of references.
    """

    output: Literal["latex", "text"] = "latex"
    bibliography: bool = False

    def __post_init__(self) -> None:
        _choice("output", self.output, ("latex", "text"))


@dataclass(frozen=True)
class StackExchangeOptions:
    """
    StackExchange dumps.

    Args:
        min_score (`int`, *optional*, defaults to 0): Smallest score of a question.
        min_answer_score (`int`, *optional*, defaults to 0): Smallest score of an answer; the accepted one stays.
        max_answers (`int`, *optional*, defaults to 5): Most answers of a question, the best first.
        require_answer (`bool`, *optional*, defaults to `True`): Leave out questions without one.
        question_prefix (`str`, *optional*, defaults to `"Question: "`): Before the title.
        answer_prefix (`str`, *optional*, defaults to `"Answer: "`): Before each answer.
    """

    min_score: int = 0
    min_answer_score: int = 0
    max_answers: int = 5
    require_answer: bool = True
    question_prefix: str = "Question: "
    answer_prefix: str = "Answer: "

    def __post_init__(self) -> None:
        _at_least("max_answers", self.max_answers, 0)
        if self.require_answer and self.max_answers == 0:
            raise UserError("max_answers = 0 with require_answer = true leaves nothing; set require_answer: false")


@dataclass(frozen=True)
class CodeOptions:
    """
    Code trees and archives.

    Args:
        languages (`list[str]`, *optional*, defaults to `[]`): Programming languages to keep; empty keeps all known.
        licenses (`list[str]`, *optional*, defaults to `[]`): SPDX names to keep; empty keeps all, unknown ones too.
        max_file_bytes (`int`, *optional*, defaults to 1,000,000): Larger files are left out (`large`).
        max_line (`int`, *optional*, defaults to 1000): Files with a longer line are left out (`long_line`).
        max_mean_line (`int`, *optional*, defaults to 100): And those whose lines are longer on average (`minified`).
        min_alphanumeric (`float`, *optional*, defaults to 0.25): And those with fewer letters and digits (`symbols`).
    """

    languages: list[str] = field(default_factory=list)
    licenses: list[str] = field(default_factory=list)
    max_file_bytes: int = 1_000_000
    max_line: int = 1000
    max_mean_line: int = 100
    min_alphanumeric: float = 0.25

    def __post_init__(self) -> None:
        for name in ("max_file_bytes", "max_line", "max_mean_line"):
            _at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class BooksOptions:
    """
    Books as text or EPUB.

    Args:
        unit (`str`, *optional*, defaults to `"book"`): `"book"`, or `"chapter"`: one document a file of the EPUB's
            spine; plain text has no chapters.
        gutenberg (`bool`, *optional*, defaults to `True`): Take off the header and licence of Project Gutenberg.
    """

    unit: Literal["book", "chapter"] = "book"
    gutenberg: bool = True

    def __post_init__(self) -> None:
        _choice("unit", self.unit, ("book", "chapter"))


@dataclass(frozen=True)
class ProblemsOptions:
    """
    Problems with solutions, as JSONL or Parquet.

    Args:
        problem_key (`str`, *optional*, defaults to `"problem"`): Field of the problem.
        solution_key (`str`, *optional*, defaults to `"solution"`): Field of the solution, a text or a list of texts.
        answer_key (`str`, *optional*, defaults to `"answer"`): Field of the final answer, where there is one.
        template (`str`, *optional*, defaults to `"Problem: {problem}\\n\\nSolution: {solution}"`): The document;
            `{problem}`, `{solution}` and `{answer}` are replaced, other braces stay.
        answer_template (`str`, *optional*, defaults to `"\\n\\nAnswer: {answer}"`): Added where the solution does not
            hold the answer.
        require_solution (`bool`, *optional*, defaults to `True`): Leave out rows without one (`no_solution`).
    """

    problem_key: str = "problem"
    solution_key: str = "solution"
    answer_key: str = "answer"
    template: str = "Problem: {problem}\n\nSolution: {solution}"
    answer_template: str = "\n\nAnswer: {answer}"
    require_solution: bool = True

    def __post_init__(self) -> None:
        if "{problem}" not in self.template:
            raise UserError(f"template = {self.template!r}; it needs {{problem}}, and usually {{solution}}")


OPTIONS = {
    "wikipedia": WikipediaOptions,
    "arxiv": ArxivOptions,
    "stackexchange": StackExchangeOptions,
    "code": CodeOptions,
    "books": BooksOptions,
    "problems": ProblemsOptions,
}


def options_of(kind: str, options: dict[str, Any], where: str) -> Any:
    """
    The options of one kind of source.

    Args:
        kind (`str`): The kind.
        options (`dict`): What the recipe says.
        where (`str`): The field, for messages.

    Returns:
        `WikipediaOptions`, `ArxivOptions`, ... or `None` for a kind that has none.

    Raises:
        UserError: If a key is unknown or a value has the wrong type, or the kind has no options.
    """
    if kind in OPTIONS:
        return build(OPTIONS[kind], options, where)
    if options:
        raise UserError(f"{where} = {options!r}; kind = {kind!r} has no options: leave them out")
    return None
