"""Mathematics with solutions, as JSON Lines or Parquet: problem, solution and final answer put into a template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.reader import Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.tables import JsonlSource, read_parquet


# GSM8K writes a calculator's work into the text, and the answer behind four marks.
_CALCULATOR = re.compile(r"<<[^<>\n]{0,200}>>")
_MARKED = re.compile(r"\n?####[ \t]*(\S[^\n]{0,200})\s*\Z")


class ProblemsSource(JsonlSource):
    """
    Rows with a problem and a solution, see `ProblemsOptions`.

    The answer is the row's own, else that of the last `\\boxed{...}` of the solution (which stays in the text), else
    GSM8K's after `####`. Rows without a solution are `skipped_no_solution`. Metadata: `answer`, and what else the row
    holds.
    """

    name = "Problems source"

    def __init__(self, config: SourceConfig) -> None:
        SourceReader.__init__(self, config)

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Problems of one file.

        Args:
            path (`Path`): JSON Lines or Parquet.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: row number from 0, and the document's fields.
        """
        options = self.config.kind_options
        rows = read_parquet(path, options.problem_key) if path.name.endswith(".parquet") else super().read_rows(path)
        for number, row in rows:
            yield number, self._problem(row, options) if isinstance(row, dict) else row

    def _problem(self, row: dict[str, Any], options: Any) -> Row:
        fields = dict(row)
        problem, solution = fields.pop(options.problem_key, None), fields.pop(options.solution_key, None)
        answer = fields.pop(options.answer_key, None)
        if not isinstance(problem, str) or not problem.strip():
            return RowFault("no_text", f"no text in '{options.problem_key}'; fields are {', '.join(map(str, row))}")
        if isinstance(solution, list):
            solution = next((item for item in solution if isinstance(item, str) and item.strip()), None)
        solution = _CALCULATOR.sub("", solution).strip() if isinstance(solution, str) else ""
        marked = _MARKED.search(solution)
        if marked:
            solution = solution[: marked.start()].rstrip()
        if not solution and options.require_solution:
            return Skipped("no_solution")
        answer = str(answer).strip() if isinstance(answer, (str, int, float)) else ""
        answer = answer or boxed_answer(solution) or (marked[1].strip() if marked else "")
        values = {"problem": problem.strip(), "solution": solution, "answer": answer}
        template = options.template
        if answer and options.answer_template and "{answer}" not in template and not _holds(solution, answer):
            template += options.answer_template
        text = re.sub(r"\{(problem|solution|answer)\}", lambda found: values[found[1]], template).strip()
        return {**fields, self.text_key: text, "answer": answer}


def boxed_answer(solution: str) -> str:
    """
    Content of the last `\\boxed{...}`, braces inside it balanced.

    Args:
        solution (`str`): LaTeX.

    Returns:
        `str`: the answer, `""` without one.
    """
    for found in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*(?=\{)", solution))):
        depth = 0
        for brace in re.compile(r"\\.|[{}]", re.S).finditer(solution, found.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return solution[found.end() + 1 : brace.start()].strip()
    return ""


def _holds(solution: str, answer: str) -> bool:
    """Whether a reader finds the answer at the end of the solution."""
    if boxed_answer(solution) == answer:
        return True
    last = solution.strip().split("\n")[-1]
    return re.search(rf"(?<![\w.]){re.escape(answer)}(?![\w]|\.\d)", last) is not None
