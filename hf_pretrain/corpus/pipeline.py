"""Raw files to token shards: the order of the work.

    sample -> ingest (read, extract, language) -> filter -> exact -> near -> toxicity -> quality
           -> pii -> decontaminate -> tokenizer -> tokens

Cheap steps come before dear ones. Personal data is masked after deduplication, so that masking cannot make two
documents equal; benchmark items go before the tokenizer is trained and before anything is split, so neither the
vocabulary nor the validation set has seen them; the split comes after deduplication, so no near-duplicate lies in
both. Every step is a folder of its own (`stage.py`), its documents are JSONL by source (`documents.py`), its losses
are counted (`funnel.py`).
"""

import json
import logging
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.config import CorpusConfig, InstructionConfig
from hf_pretrain.corpus.config_filters import QualityConfig, ToxicityConfig
from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.contamination.index import ContaminationIndex
from hf_pretrain.corpus.contamination.report import (
    BenchmarkConfig,
    benchmark_items,
    contamination_report,
    item_id_of,
    read_rows,
)
from hf_pretrain.corpus.contamination.steps import DecontaminationFilter
from hf_pretrain.corpus.dedup.config import DedupStep, dedup_steps
from hf_pretrain.corpus.dedup.index import BuildDedupIndex
from hf_pretrain.corpus.documents import DocumentReader, DocumentWriter, count_rows, document_files, read_documents
from hf_pretrain.corpus.facts import corpus_facts
from hf_pretrain.corpus.filters.heuristics import build_filters
from hf_pretrain.corpus.filters.pii import PIIFormatter
from hf_pretrain.corpus.filters.profiles import load_profiles, profile_settings
from hf_pretrain.corpus.funnel import Counted, ReasonCapture, build_funnel, empty_row, merge_rows
from hf_pretrain.corpus.ingest.extraction import build_extractor
from hf_pretrain.corpus.ingest.language import LanguageStep
from hf_pretrain.corpus.ingest.language_detectors import detector_identity
from hf_pretrain.corpus.ingest.listing import list_files
from hf_pretrain.corpus.ingest.sample import build_sample
from hf_pretrain.corpus.ingest.sources import build_reader, resolve_source
from hf_pretrain.corpus.ingest.urls import OfflineUrlFilter
from hf_pretrain.corpus.scoring import ScoringStep, scoring_steps
from hf_pretrain.corpus.shards.tokenizer import load_tokenizer, sample_texts, save_tokenizer, train_tokenizer
from hf_pretrain.corpus.shards.writing import write_token_shards
from hf_pretrain.corpus.stage import StepResult, StepRunner, corpus_lock, run_pipeline
from hf_pretrain.corpus.staged_dedup import prepare_staged, remove_work
from hf_pretrain.utils.atomic import atomic_directory, read_json, read_jsonl, write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint_files
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)


def build_corpus(config: CorpusConfig, out_dir: str | os.PathLike) -> dict[str, Any]:
    """Builds a corpus, or what is missing of it.

    Args:
        config (`CorpusConfig`): The settings.
        out_dir (`str` or `os.PathLike`): The corpus folder. Afterwards it holds `tokenizer/`, `tokens/`,
            `benchmarks/`, `sft/`, `contamination_index/`, `contamination.json`, `funnel.json`, and `steps/`.

    Returns:
        `dict`: The facts of the stage, see `facts.py`.

    Raises:
        UserError: If an input is missing or broken, a limit is exceeded, or nothing is left.
    """
    with corpus_lock(out_dir):
        return _CorpusBuilder(config, Path(out_dir)).build()


def sources_from_files(config: CorpusConfig) -> list[Path]:
    """Lists the user's files that a corpus is made of; a recipe is run again when one changes.

    Args:
        config (`CorpusConfig`): The settings.

    Returns:
        `list[Path]`: Files of sources, benchmarks, instruction sets and tokenizer.

    Raises:
        UserError: If one is missing.
    """
    files = [file for source in config.sources if source.reads_files for file in list_files(source)]
    for kind, item in [
        *(("benchmark", b) for b in config.benchmarks),
        *(("instructions", i) for i in config.instructions),
    ]:
        if item.path != "sample":
            if not Path(item.path).is_file():
                raise UserError(f"{kind} '{item.name}': path = {item.path!r}; there is no such file.")
            files.append(Path(item.path))
    if config.tokenizer.path is not None:
        file = Path(config.tokenizer.path) / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"tokenizer.path = {config.tokenizer.path!r}; there is no tokenizer.json in that folder.")
        files.append(file)
    return files


class _CorpusBuilder:
    """The steps of one corpus, in order."""

    def __init__(self, config: CorpusConfig, out_dir: Path) -> None:
        self.config, self.out_dir = config, out_dir
        self.runner = StepRunner(out_dir)
        self.sample: StepResult | None = None

    def build(self) -> dict[str, Any]:
        config = self.config
        sources_from_files(config)  # a missing file is an error before the first step, and so is a missing classifier
        scoring = scoring_steps(config.filters)
        if config.uses_sample:
            self.sample = self.runner.run(
                "sample", [config.sample.seed, config.sample.scale, sys.version], [], self._build_sample
            )
        instruction_rows = self._copy_side_data()
        documents = self._ingest()
        documents = self._filter(documents)
        deduplication = dedup_steps(config.dedup, config.source_names)
        for step in deduplication:
            documents = self._deduplicate(documents, step)
        if config.dedup.save_index:
            self._save_dedup_index(documents, deduplication)
        for step in scoring:
            documents = self._score(documents, step)
        if config.pii.types:
            documents = self._mask(documents)
        contamination = None
        if config.contamination.enabled:
            documents = contamination = self._decontaminate(documents)
        tokenizer = self._tokenizer(documents)
        tokens = self._tokens(documents, tokenizer)
        return self._publish(contamination, tokenizer, tokens, instruction_rows)

    # The steps.

    def _build_sample(self, folder: Path) -> dict[str, Any]:
        settings = self.config.sample
        manifest = build_sample(folder / "crawl", settings.cache_dir, settings.seed, settings.scale)
        return {"sample": manifest.fingerprint}

    @property
    def _sample_dir(self) -> Path | None:
        return self.sample.folder / "crawl" if self.sample else None

    def _path_of(self, item: BenchmarkConfig | InstructionConfig) -> Path:
        if item.path != "sample":
            return Path(item.path)
        folder = self._sample_dir / ("benchmarks" if isinstance(item, BenchmarkConfig) else "sft")
        path = folder / f"{item.name}.jsonl.gz"
        if not path.is_file():
            known = [file.name.removesuffix(".jsonl.gz") for file in folder.glob("*.jsonl.gz")]
            raise UserError(f"path = 'sample': {unknown_name_message(folder.name + ' file', item.name, known)}")
        return path

    def _copy_side_data(self) -> dict[str, int]:
        """Benchmarks and instructions go first: what is wrong with them must not show after an hour of extraction."""
        config = self.config
        with atomic_directory(self.out_dir / "benchmarks") as staging:
            for item in config.benchmarks:
                benchmark_items(item, self._path_of(item))
                rows = read_rows(self._path_of(item), f"benchmark {item.name!r}")
                # The id under which the report names an item is the id that readers of the copy find.
                named = ({**row, "id": item_id_of(item, row, number)} for number, row in enumerate(rows, 1))
                _write_jsonl(staging / f"{item.name}.jsonl", named)
        instruction_rows = {}
        with atomic_directory(self.out_dir / "sft") as staging:
            for item in config.instructions:
                rows = _instruction_rows(item, self._path_of(item))
                instruction_rows[item.name] = _write_jsonl(staging / f"{item.name}.jsonl", rows)
                if not instruction_rows[item.name]:
                    raise UserError(f"instructions {item.name!r}: {self._path_of(item)} has no rows.")
        return instruction_rows

    def _ingest(self) -> StepResult:
        config = self.config
        inputs: list[Any] = [self.sample] if self.sample else []
        listing = [file for source in config.sources if source.reads_files for file in list_files(source)]
        inputs.append([[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in listing])
        settings = [
            config.sources,
            config.urls,
            config.extraction,
            config.language,
            detector_identity(config.language),
        ]
        profiles = load_profiles(config.filters.profiles)
        if config.language.profile_scores:
            settings.append(profile_settings(profiles))

        def work(folder: Path) -> dict[str, Any]:
            rows: list[dict[str, Any]] = []
            domains = {source.name: source.effective_domain for source in config.sources}
            for source in config.sources:
                if source.kind == "routed":
                    continue
                resolved = resolve_source(source, self._sample_dir)
                blocks: list[tuple[str, PipelineStep]] = []
                if config.urls.enabled:
                    blocks.append(("url", OfflineUrlFilter(config.urls)))
                if resolved.kind == "warc":
                    blocks.append(("extract", build_extractor(config.extraction)))
                blocks.append(("language", LanguageStep(config.language, domains, profiles)))
                reader = build_reader(source, self._sample_dir)
                rows += self._run_blocks(folder, reader, blocks, source, f"ingest {source.name}")
            return self._details(folder, merge_rows(rows))

        return self.runner.run("ingest", settings, inputs, work)

    def _filter(self, documents: StepResult) -> StepResult:
        config = self.config
        # What is scored later has its own steps.
        rules = replace(config.filters, quality=QualityConfig(), toxicity=ToxicityConfig())
        profiles = profile_settings(load_profiles(config.filters.profiles))
        settings = [rules, profiles, [(source.name, source.effective_domain) for source in config.sources]]

        def work(folder: Path) -> dict[str, Any]:
            rows: list[dict[str, Any]] = []
            for source in config.sources:
                names: list[str] = []

                def writer(rule: str, names: list[str] = names) -> ReasonCapture:
                    names.append(rule)
                    return ReasonCapture()

                steps = build_filters(config.filters, source.effective_domain, writer)
                blocks = list(zip(names, steps, strict=True))
                reader = DocumentReader(documents.folder / "documents", [source.name])
                rows += self._run_blocks(
                    folder, reader, blocks, source, f"filter {source.name}", _rows_of(documents, source.name)
                )
            return self._details(folder, rows)

        return self.runner.run("filter", settings, [documents], work)

    def _deduplicate(self, documents: StepResult, step: DedupStep) -> StepResult:
        """In memory, or over shards when the documents are larger than `limits.memory_bytes`."""
        config = self.config
        size, limit = self._document_bytes(documents), config.limits.memory_bytes
        over_shards = step.method is not None and size > limit
        if not over_shards:
            self._check_memory(documents, step.name)
        index = fingerprint_files(sorted(file for f in step.index for file in Path(f).rglob("manifest.json")))

        def work(folder: Path) -> dict[str, Any]:
            if not over_shards:
                return self._details(folder, self._run_on_all(folder, documents, step.name, step.make(folder), 1))
            logger.info("%s: %d bytes of documents, limits.memory_bytes = %d; over shards", step.name, size, limit)
            tasks = config.num_tasks
            block = prepare_staged(
                step,
                folder,
                lambda: DocumentReader(documents.folder / "documents", config.source_names),
                config.dedup.keep,
                config.source_names,
                tasks,
                config.workers,
                limit,
                sum(documents.details["rows"].values()),
            )
            details = self._details(folder, self._run_on_all(folder, documents, step.name, block, tasks))
            remove_work(folder)
            return details

        return self.runner.run(step.name, [step.settings, config.source_names], [documents, index], work)

    def _save_dedup_index(self, documents: StepResult, steps: list[DedupStep]) -> None:
        """Writes what stays as an index for later corpora, one folder a method."""
        config = self.config

        def work(folder: Path) -> dict[str, Any]:
            for step in steps:
                if step.method is not None:
                    reader = DocumentReader(documents.folder / "documents", config.source_names)
                    block = BuildDedupIndex(folder / "index" / step.name, step.method, config.dedup.keep)
                    logs = folder / "logs" / step.name
                    run_pipeline([reader, block], logs, config.num_tasks, config.workers, f"index {step.name}")
            return {}

        settings = [[step.settings for step in steps], config.num_tasks]
        result = self.runner.run("dedup_index", settings, [documents], work)
        _publish_folder(result.folder / "index", self.out_dir / "dedup_index")

    def _score(self, documents: StepResult, step: ScoringStep) -> StepResult:
        def work(folder: Path) -> dict[str, Any]:
            block = step.make(folder, documents.folder / "documents")
            rows = self._run_on_all(folder, documents, step.name, block, self.config.num_tasks)
            return self._details(folder, rows) | step.details(folder)

        return self.runner.run(step.name, step.settings, [documents], work)

    def _mask(self, documents: StepResult) -> StepResult:
        def work(folder: Path) -> dict[str, Any]:
            rows = self._run_on_all(folder, documents, "pii", PIIFormatter(self.config.pii), self.config.num_tasks)
            found: Counter[str] = Counter()
            for file in document_files(folder / "documents", self.config.source_names):
                for document in read_documents(file):
                    found.update(document.metadata.get("pii") or {})
            return self._details(folder, rows) | {"masked": dict(sorted(found.items()))}

        return self.runner.run("pii", self.config.pii, [documents], work)

    def _decontaminate(self, documents: StepResult) -> StepResult:
        config = self.config
        paths = [self._path_of(item) for item in config.benchmarks]
        own = [path for item, path in zip(config.benchmarks, paths, strict=True) if item.path != "sample"]
        inputs = [documents, fingerprint_files(own), *([self.sample] if self.sample else [])]

        def work(folder: Path) -> dict[str, Any]:
            items = []
            for item, path in zip(config.benchmarks, paths, strict=True):
                items += benchmark_items(item, path)
            index = ContaminationIndex.build(items, config.contamination.settings)
            index.save(folder / "index")
            block = DecontaminationFilter(
                str(folder / "index"),
                config.contamination.settings,
                str(folder / "findings"),
                config.contamination.action,
                config.contamination.min_words_left,
            )
            rows = self._run_on_all(folder, documents, "decontaminate", block, config.num_tasks)
            findings = [row for file in sorted((folder / "findings").glob("*.jsonl")) for row in read_jsonl(file)]
            searched = sum(row["documents_in"] for row in rows)
            report = contamination_report(index, findings, config.contamination.action, searched)
            write_json(folder / "contamination.json", report)
            return self._details(folder, rows)

        return self.runner.run("decontaminate", [config.contamination, config.benchmarks], inputs, work)

    def _tokenizer(self, documents: StepResult) -> StepResult:
        config = self.config.tokenizer
        if config.path is not None:
            given = Path(config.path)
            load_tokenizer(given)

            def copy(folder: Path) -> dict[str, Any]:
                shutil.copytree(given, folder / "tokenizer")
                return {"trained_on_bytes": {}}

            files = [file for file in sorted(given.iterdir()) if file.is_file()]
            return self.runner.run("tokenizer", {"path": config.path}, [fingerprint_files(files)], copy)

        def work(folder: Path) -> dict[str, Any]:
            texts = {
                name: [(document.id, document.text) for document in self._load(documents, name)]
                for name in self.config.source_names
            }
            chosen, taken = sample_texts(texts, config)
            if not chosen:
                raise UserError(
                    "nothing is left of the sources, see `steps/`; loosen the filters or name other sources."
                )
            save_tokenizer(train_tokenizer(chosen, config), folder / "tokenizer")
            return {"trained_on_bytes": taken}

        return self.runner.run("tokenizer", config, [documents], work)

    def _tokens(self, documents: StepResult, tokenizer: StepResult) -> StepResult:
        config = self.config
        self._check_memory(documents, "tokens")
        settings = [config.validation, config.long_documents, config.limits.shard_tokens]

        def work(folder: Path) -> dict[str, Any]:
            loaded = load_tokenizer(tokenizer.folder / "tokenizer")
            summaries = write_token_shards(
                folder / "tokens",
                {name: self._load(documents, name) for name in config.source_names},
                loaded,
                validation=config.validation,
                long_documents=config.long_documents,
                shard_tokens=config.limits.shard_tokens,
                tokenizer_name=f"byte-level BPE {tokenizer.fingerprint}",
            )
            return {"sources": summaries}

        return self.runner.run("tokens", settings, [documents, tokenizer], work)

    # Helpers of the steps.

    def _run_blocks(
        self,
        folder: Path,
        reader: PipelineStep,
        blocks: list[tuple[str, PipelineStep]],
        source: SourceConfig,
        label: str,
        total: int | None = None,
    ) -> list[dict[str, Any]]:
        """One source through some blocks; returns its rows of the funnel, bad input rows included."""
        logging_dir = folder / "logs" / source.name
        counted = [Counted(name, block, logging_dir, place) for place, (name, block) in enumerate(blocks)]
        outcome = run_pipeline(
            [reader, *counted, DocumentWriter(folder / "documents", logging_dir)],
            logging_dir,
            self.config.num_tasks,
            self.config.workers,
            label,
            total,
        )
        rows = merge_rows(outcome.tallies)
        left_out = {
            name.replace("bad_rows_", "bad_row_"): _total(value)
            for name, value in outcome.stats[0]["stats"].items()
            if name.startswith(("bad_rows_", "skipped_")) and name != "skipped_rows"
        }
        if left_out:
            first = rows[0] if rows else empty_row("read", source.name)
            bad = {name: {"documents": count, "bytes": 0} for name, count in left_out.items()}
            read = {
                **first,
                "stage": "read",
                "documents_in": first["documents_in"] + sum(left_out.values()),
                "documents_out": first["documents_in"],
                "bytes_out": first["bytes_in"],
                "bytes_trimmed": 0,
                "removed": bad,
                "seconds": 0.0,
            }
            rows.insert(0, read)
        return rows

    def _run_on_all(
        self, folder: Path, documents: StepResult, stage: str, block: PipelineStep, tasks: int
    ) -> list[dict[str, Any]]:
        """All sources through one block."""
        logging_dir = folder / "logs"
        outcome = run_pipeline(
            [
                DocumentReader(documents.folder / "documents", self.config.source_names),
                Counted(stage, block, logging_dir, 0),
                DocumentWriter(folder / "documents", logging_dir),
            ],
            logging_dir,
            tasks,
            self.config.workers,
            stage,
            sum(documents.details["rows"].values()),
        )
        # Tasks meet the sources in any order; the account does not depend on how many there were.
        return sorted(merge_rows(outcome.tallies), key=lambda row: self.config.source_names.index(row["source"]))

    def _details(self, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
        files: dict[str, int] = {}
        for logging_dir in sorted(path.parent for path in (folder / "logs").rglob("rows")):
            files.update(count_rows(logging_dir))
        return {"funnel": rows, "rows": dict(sorted(files.items()))}

    def _load(self, documents: StepResult, source: str) -> list[Document]:
        return [
            document
            for file in document_files(documents.folder / "documents", [source])
            for document in read_documents(file)
        ]

    def _document_bytes(self, documents: StepResult) -> int:
        files = document_files(documents.folder / "documents", self.config.source_names)
        return sum(file.stat().st_size for file in files)

    def _check_memory(self, documents: StepResult, step: str) -> None:
        size = self._document_bytes(documents)
        if size > self.config.limits.memory_bytes:
            raise UserError(
                f"{step}: the documents are {size} bytes, limits.memory_bytes = {self.config.limits.memory_bytes}; "
                "raise the limit if the machine has twice as much memory, or name less."
            )

    # The end.

    def _publish(
        self,
        contamination: StepResult | None,
        tokenizer: StepResult,
        tokens: StepResult,
        instruction_rows: dict[str, int],
    ) -> dict[str, Any]:
        config = self.config
        _publish_folder(tokenizer.folder / "tokenizer", self.out_dir / "tokenizer")
        _publish_folder(tokens.folder / "tokens", self.out_dir / "tokens")
        report = None
        if contamination is None:
            # What an earlier build found says nothing about this corpus.
            shutil.rmtree(self.out_dir / "contamination_index", ignore_errors=True)
            (self.out_dir / "contamination.json").unlink(missing_ok=True)
        else:
            _publish_folder(contamination.folder / "index", self.out_dir / "contamination_index")
            report = read_json(contamination.folder / "contamination.json")
            write_json(self.out_dir / "contamination.json", report)
        summaries = tokens.details["sources"]
        rows = [row for result in self.runner.results for row in result.details.get("funnel", [])]
        token_counts: Counter[str] = Counter()
        for summary in summaries:
            if summary["name"] != config.long_documents.name:
                token_counts[summary["name"]] += summary["num_tokens"]
        funnel = build_funnel(rows, dict(token_counts))
        write_json(self.out_dir / "funnel.json", funnel)
        facts = corpus_facts(config, self.runner.results, funnel, summaries, report, instruction_rows)
        if not config.keep_old_steps:
            for name in self.runner.remove_superseded():
                logger.info("removed steps/%s, which was made with other settings", name)
        return facts


def _rows_of(result: StepResult, source: str) -> int:
    return sum(rows for file, rows in result.details["rows"].items() if file.startswith(f"{source}/"))


def _total(value: Any) -> int:
    return int(value["total"] if isinstance(value, dict) else value)


def _instruction_rows(item: InstructionConfig, path: Path) -> Iterator[dict[str, Any]]:
    what = f"instructions {item.name!r}"
    for number, row in enumerate(read_rows(path, what), 1):
        if not ({"messages", "conversations"} & set(row) or {"prompt", "completion"} <= set(row)):
            raise UserError(
                f"{what}: row {number} of {path} has {', '.join(map(str, row)) or 'no fields'}; `messages`, "
                "`conversations`, or `prompt` and `completion` are needed."
            )
        yield row


def _write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    with open(path, "w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _publish_folder(source: Path, target: Path) -> None:
    """Puts a finished folder at its public place, by hard links where the file system has them."""

    def link(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)

    with atomic_directory(target) as staging:
        shutil.copytree(source, staging, copy_function=link, dirs_exist_ok=True)
