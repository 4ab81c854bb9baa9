"""StackExchange data dumps (`Posts.xml`): a question with its answers, the accepted one first, then by score.

A dump holds questions and answers in the order of their making, one `<row>` a line. Rows are parsed one by one and
laid into a temporary SQLite file, so memory stays flat and a damaged row is one bad row.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.ingest.html_fragments import fragment_text
from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.safe_xml import parse_xml
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault


_QUESTION, _ANSWER = "1", "2"
_SCHEMA = """
CREATE TABLE questions (id INTEGER PRIMARY KEY, line INTEGER, score INTEGER, accepted INTEGER, title TEXT, tags TEXT,
    body TEXT, date TEXT, license TEXT);
CREATE TABLE answers (id INTEGER PRIMARY KEY, parent INTEGER, line INTEGER, score INTEGER, body TEXT, license TEXT);
"""


class StackExchangeSource(SourceReader):
    """
    Questions with ranked answers of StackExchange dumps, plain or compressed `Posts.xml`.

    A row of the account is a line of the file. Answers that stand in a document count as `skipped_in_question`, those
    without their question, below the score or beyond the number as `skipped_answer_...`; other posts as
    `skipped_post_type`. Metadata: `url` (where the folder names the site), `score`, `tags`, `answers`, `accepted`.
    """

    name = "StackExchange source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Questions of one dump.

        Args:
            path (`Path`): A `Posts.xml`.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: line number from 0, and the question with its answers.
        """
        fault = ""
        with tempfile.TemporaryDirectory(prefix="stackexchange") as folder:
            database = sqlite3.connect(Path(folder) / "posts.sqlite")
            try:
                database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
                try:
                    yield from self._load(path, database)
                except FileFault as error:
                    fault = str(error)  # what was read before it is given first
                database.execute("CREATE INDEX parents ON answers (parent)")
                yield from self._questions(path, database)
            finally:
                database.close()
        if fault:
            raise FileFault(fault)

    def _load(self, path: Path, database: sqlite3.Connection) -> Iterator[tuple[int, Row]]:
        """Lays questions and answers into the database; yields the rows that are neither."""
        longest = 2 * self.config.max_document_bytes + 65_536
        line_number, found, closed = -1, False, False
        with open_stream(path) as stream:
            while line := stream.readline(longest):
                line_number += 1
                if len(line) == longest and not line.endswith(b"\n"):
                    yield line_number, RowFault("too_large", f"line of more than {longest} bytes")
                    while (rest := stream.readline(longest)) and not rest.endswith(b"\n"):
                        pass
                    continue
                content = line.strip().removeprefix(b"\xef\xbb\xbf")
                found = found or content.startswith(b"<posts")
                closed = closed or content.startswith(b"</posts")
                if not content.startswith(b"<row"):
                    if content and not content.startswith((b"<?xml", b"<posts", b"</posts")):
                        if not found:
                            raise FileFault("no StackExchange dump (a <posts> element with one <row> a line)")
                        yield line_number, RowFault("broken_xml", "a line that is no row")
                    continue
                if stream_fault(stream) and not line.endswith(b"\n"):
                    break
                try:
                    outcome = self._store(dict(parse_xml(content).attrib), line_number, database)
                except ValueError as error:
                    outcome = RowFault("broken_xml", str(error))
                except sqlite3.IntegrityError:
                    outcome = RowFault("twice", "a post of this Id was read before")
                if outcome is not None:
                    yield line_number, outcome
            if fault := stream_fault(stream):
                raise FileFault(f"{fault} after line {line_number + 1}")
            if not found:
                raise FileFault("no StackExchange dump (a <posts> element with one <row> a line)")
            if not closed:
                raise FileFault(f"cut off after line {line_number + 1}, there is no </posts>")

    def _store(self, post: dict[str, str], line: int, database: sqlite3.Connection) -> Row | None:
        kind = post.get("PostTypeId")
        if kind not in (_QUESTION, _ANSWER):
            return Skipped("post_type")
        number, score = int(post.get("Id", "")), int(post.get("Score", "0"))
        body, license_name = post.get("Body", ""), post.get("ContentLicense", "")
        if kind == _ANSWER:
            values = (number, int(post.get("ParentId", "")), line, score, body, license_name)
            database.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", values)
            return None
        accepted = int(post.get("AcceptedAnswerId", "0"))
        tags = " ".join(post.get("Tags", "").replace("<", " ").replace(">", " ").replace("|", " ").split())
        title, date = post.get("Title", ""), post.get("CreationDate", "")
        values = (number, line, score, accepted, title, tags, body, date, license_name)
        database.execute("INSERT INTO questions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        return None

    def _questions(self, path: Path, database: sqlite3.Connection) -> Iterator[tuple[int, Row]]:
        options = self.config.kind_options
        answers_of = (
            "SELECT id, line, score, body, license FROM answers WHERE parent = ? ORDER BY id != ?, score DESC, id"
        )
        for question in database.execute("SELECT * FROM questions ORDER BY id"):
            number, line, score, accepted = question[:4]
            answers, left_out = [], []
            low = score < options.min_score
            for answer in database.execute(answers_of, (number, accepted)):
                if low:
                    left_out.append((answer[1], Skipped("answer_of_low_question")))
                elif answer[2] < options.min_answer_score and answer[0] != accepted:
                    left_out.append((answer[1], Skipped("answer_score")))
                elif len(answers) == options.max_answers:
                    left_out.append((answer[1], Skipped("answer_beyond_max")))
                else:
                    answers.append(answer)
                    left_out.append((answer[1], Skipped("in_question")))
            if low:
                yield line, Skipped("score")
            elif options.require_answer and not answers:
                yield line, Skipped("no_answer")
            else:
                yield line, self._document_of(path, question, answers, options)
            yield from left_out
        lost = "SELECT line FROM answers WHERE parent NOT IN (SELECT id FROM questions) ORDER BY line"
        yield from ((line, Skipped("answer_without_question")) for (line,) in database.execute(lost))

    def _document_of(self, path: Path, question: tuple, answers: list[tuple], options: Any) -> Row:
        number, _, score, accepted, title, tags, body, date, license_name = question
        purpose = "reading StackExchange dumps"
        try:
            parts = [f"{options.question_prefix}{title}".strip(), fragment_text(body, purpose)]
            parts += [f"{options.answer_prefix}{fragment_text(answer[3], purpose)}".strip() for answer in answers]
        except ValueError as error:
            return RowFault("too_deep", str(error))
        licenses = sorted({name for name in [license_name, *(answer[4] for answer in answers)] if name})
        record: dict[str, Any] = {
            self.text_key: "\n\n".join(part for part in parts if part),
            self.id_key: f"{self.config.name}/{number}",
            "title": title,
            "score": score,
            "tags": tags.split(),
            "answers": len(answers),
            "accepted": bool(answers) and answers[0][0] == accepted,
            "date": date,
            # Old posts are CC BY-SA 2.5 or 3.0; a document of several falls under all of them.
            "license": " AND ".join(name.replace(" ", "-") for name in licenses),
        }
        site = path.parent.name
        if "." in site and not site.startswith("."):
            record["url"] = f"https://{site.removesuffix('.7z')}/questions/{number}"
        return record
