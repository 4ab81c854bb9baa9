"""`hf-pretrain evaluate`: bits per byte by domain, by position, and of benchmark answers, for the models of a run.

Writes `evaluation.json` into the stage's folder and the same content into `facts.json`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.scripts.execution import stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.errors import UserError, one_line


if TYPE_CHECKING:
    from hf_pretrain.data.token_source import TokenSource
    from hf_pretrain.evaluation.suite import Benchmark

UNTRAINED = "untrained"


@dataclass(frozen=True)
class LongContextOptions:
    """Scores by position in long documents, at two context lengths.

    Args:
        models (`list[str]`): Stages to compare, e.g. before and after the context was extended.
        context_lengths (`list[int]`): Window lengths in tokens.
        edges (`list[int]`): Borders of the position buckets, in tokens from the document's start.
        max_documents (`int`, *optional*, defaults to 8): Documents taken; each has at least `edges[-1]` tokens.
    """

    models: list[str]
    context_lengths: list[int]
    edges: list[int]
    max_documents: int = 8

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or sorted(set(self.edges)) != self.edges or self.edges[0] < 0:
            raise UserError(f"edges = {self.edges}; at least two rising numbers of tokens are expected.")
        if not self.context_lengths or min(self.context_lengths) < 2:
            raise UserError(f"context_lengths = {self.context_lengths}; lengths of at least 2 tokens are expected.")
        if self.max_documents < 1:
            raise UserError(f"max_documents = {self.max_documents}; at least 1 is expected.")


@dataclass(frozen=True)
class MemorisationOptions:
    """How much training text comes back word for word, by how often it was read.

    Args:
        stage (`str`): The training stage whose data is asked for; it must have read some of it more than once to tell
            a difference.
        prefix_tokens (`int`, *optional*, defaults to 32): Tokens given.
        continuation_tokens (`int`, *optional*, defaults to 32): Tokens that must follow exactly.
        max_passages (`int`, *optional*, defaults to 200): Passages read once, and as many read more often.
    """

    stage: str
    prefix_tokens: int = 32
    continuation_tokens: int = 32
    max_passages: int = 200

    def __post_init__(self) -> None:
        for name in ("prefix_tokens", "continuation_tokens", "max_passages"):
            if getattr(self, name) < 1:
                raise UserError(f"memorisation.{name} = {getattr(self, name)}; at least 1 is expected.")


@dataclass(frozen=True)
class EvaluateOptions:
    """Keys of an evaluate stage's file.

    Args:
        corpus (`str`): The corpus stage, for tokenizer, held-out tokens and benchmarks.
        models (`list[str]`): Stages or model folders to score, in order; `untrained` is the first stage's model before
            its first step.
        untrained_from (`str`, *optional*): The stage whose untrained model is meant; by default the first of `models`.
        sources (`list[str]`, *optional*): Held-out sources to score; by default all. A source that repeats documents
            of others is better left out, for they would count twice.
        context_length (`int`, *optional*, defaults to 256): Window length for bits per byte by source.
        max_tokens_per_source (`int`, *optional*, defaults to 8192): Held-out tokens scored a source.
        max_document_tokens (`int`, *optional*, defaults to 2048): Most tokens of one document.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass.
        max_benchmark_items (`int`, *optional*, defaults to 200): Items scored a benchmark; contaminated ones go first.
        id_key (`str`, *optional*, defaults to `"item_id"`): Field of a benchmark item that holds its id, else `id`,
            else its row number.
        question_key (`str`, *optional*, defaults to `"question"`): Field of a benchmark item that holds the question.
        answer_key (`str`, *optional*, defaults to `"answer"`): Field that holds the reference answer.
        bootstrap_resamples (`int`, *optional*, defaults to 1000): Draws of the bootstrap.
        confidence (`float`, *optional*, defaults to 0.95): Mass of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the bootstrap.
        long_context (`LongContextOptions`, *optional*): Scores by position; left out by default.
        memorisation (`MemorisationOptions`, *optional*): Training text given back; left out by default.
    """

    corpus: str
    models: list[str]
    untrained_from: str | None = None
    sources: list[str] | None = None
    context_length: int = 256
    max_tokens_per_source: int = 8192
    max_document_tokens: int = 2048
    tokens_per_batch: int = 4096
    max_benchmark_items: int = 200
    id_key: str = "item_id"
    question_key: str = "question"
    answer_key: str = "answer"
    bootstrap_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0
    long_context: LongContextOptions | None = None
    memorisation: MemorisationOptions | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("models = []; name at least one stage or model folder.")
        if len(set(self.models)) != len(self.models):
            raise UserError(f"models = {self.models}; each may stand there once.")
        if UNTRAINED in self.models and self.untrained_source is None:
            raise UserError(
                f"models = {self.models}; '{UNTRAINED}' needs untrained_from: name the stage it is the start of."
            )
        for name, least in (
            ("context_length", 2),
            ("max_tokens_per_source", 2),
            ("max_document_tokens", 2),
            ("tokens_per_batch", 2),
            ("max_benchmark_items", 0),
            ("bootstrap_resamples", 10),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{name} = {getattr(self, name)}; at least {least} is expected.")
        if not 0 < self.confidence < 1:
            raise UserError(f"confidence = {self.confidence}; a number between 0 and 1 is expected.")

    @property
    def untrained_source(self) -> str | None:
        """The stage whose model before training is meant by `untrained`."""
        return self.untrained_from or next((name for name in self.models if name != UNTRAINED), None)


def check(spec: StageSpec) -> EvaluateOptions:
    """Validates the stage's file without doing any work.

    Args:
        spec (`StageSpec`): The stage.

    Returns:
        `EvaluateOptions`: The options.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    from hf_pretrain.utils.strict import build

    return build(EvaluateOptions, spec.config, str(spec.path))


def run(spec: StageSpec) -> None:
    """Scores every model and records the numbers.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If the corpus or a model is missing.
    """
    from transformers.utils import logging as transformers_logging

    from hf_pretrain.evaluation.bits_per_byte import iterate_documents
    from hf_pretrain.evaluation.memorisation import memorisation_facts
    from hf_pretrain.evaluation.suite import EvaluationSuite
    from hf_pretrain.models.loading import check_vocabulary, load_saved_tokenizer
    from hf_pretrain.utils.atomic import write_json
    from hf_pretrain.utils.facts import Facts

    # The progress lines say what is going on; bars of the libraries would break them.
    transformers_logging.disable_progress_bar()
    options = check(spec)
    corpus = Path(spec.resolve(options.corpus))
    if not (corpus / "tokenizer").is_dir():
        raise UserError(f"corpus = {options.corpus}; {corpus / 'tokenizer'} is missing: run the corpus stage first.")
    sources = _validation_sources(corpus, options)
    documents = {
        source.name: list(iterate_documents(source, options.max_tokens_per_source, 2, options.max_document_tokens))
        for source in sources
    }
    documents = {name: found for name, found in documents.items() if found}
    if not documents:
        raise UserError(f"corpus = {options.corpus}; its validation tokens hold no document of two tokens or more.")
    long_context = options.long_context
    suite = EvaluationSuite(
        load_saved_tokenizer(corpus / "tokenizer", f"corpus = {options.corpus}"),
        documents,
        options.context_length,
        _read_benchmarks(corpus, options),
        _long_documents(sources, long_context),
        long_context.context_lengths if long_context else (),
        long_context.edges if long_context else (),
        options.tokens_per_batch,
        options.bootstrap_resamples,
        options.confidence,
        options.seed,
    )
    long_models = long_context.models if long_context else []
    passages = _passages(spec, options.memorisation)
    rates = {}
    for name in dict.fromkeys([*options.models, *long_models]):
        model = _load_model(spec, name, options.untrained_source)
        check_vocabulary(model, suite.tokenizer, f"models: {name}")
        suite.score(name, model, by_source=name in options.models, by_position=name in long_models)
        if options.memorisation is not None and name in options.models:
            lengths = (options.memorisation.prefix_tokens, options.memorisation.continuation_tokens)
            found = memorisation_facts({name: model}, passages, *lengths)
            rates = {**found, "rates": {**rates.get("rates", {}), **found["rates"]}}
    facts = suite.as_facts()
    if options.memorisation is not None:
        facts["memorisation"] = {"stage": options.memorisation.stage, **rates}
    write_json(spec.stage_dir / "evaluation.json", facts)
    Facts(spec.run_dir).record_stage(spec.name, spec.kind, facts)


def _validation_sources(corpus: Path, options: EvaluateOptions) -> "list[TokenSource]":
    from hf_pretrain.data.token_source import TokenSource
    from hf_pretrain.utils.naming import unknown_name_message

    folder = corpus / "tokens" / "validation"
    found = {path.parent.name: path.parent for path in sorted(folder.glob("*/source.json"))}
    if not found:
        raise UserError(
            f"corpus = {options.corpus}; {folder} holds no validation tokens: run the corpus stage with a held-out "
            "split."
        )
    for name in options.sources or ():
        if name not in found:
            raise UserError(f"sources: {unknown_name_message('source', name, found)}")
    return [TokenSource.open(found[name]) for name in options.sources or found]


def _passages(spec: StageSpec, options: MemorisationOptions | None) -> dict[str, Any]:
    """Passages of a training stage that were read once, and those read more often."""
    if options is None:
        return {}
    from hf_pretrain.data.order import DataOrder
    from hf_pretrain.evaluation.memorisation import passages_by_repetition

    order = DataOrder.read(spec.resolve(options.stage))
    length = options.prefix_tokens + options.continuation_tokens
    if length > order.seq_length:
        raise UserError(
            f"memorisation: prefix_tokens + continuation_tokens = {length}; {options.stage} read windows of "
            f"{order.seq_length} tokens: ask for fewer."
        )
    return passages_by_repetition(order.build(), order.num_samples, length, options.max_passages)


def _long_documents(sources: "list[TokenSource]", options: LongContextOptions | None) -> list[Any]:
    if options is None:
        return []
    from hf_pretrain.evaluation.bits_per_byte import iterate_documents

    found = []
    for source in sources:
        for document in iterate_documents(source, min_tokens=options.edges[-1], max_document_tokens=options.edges[-1]):
            found.append(document)
            if len(found) == options.max_documents:
                return found
    return found


def _load_model(spec: StageSpec, name: str, untrained_source: str | None) -> Any:
    from hf_pretrain.models.loading import load_causal_lm, new_causal_lm

    folder = spec.resolve(untrained_source if name == UNTRAINED else name)
    path = Path(folder) / "model" if (Path(folder) / "model").is_dir() else folder
    if isinstance(path, Path) and not (path / "config.json").exists():
        raise UserError(f"models: {name}; {path} holds no model: run that stage first or name a model folder.")
    if name == UNTRAINED:
        return new_causal_lm(path, f"untrained_from = {untrained_source}", _seed_of(spec, untrained_source)).eval()
    return load_causal_lm(path, f"models: {name}").eval()


def _seed_of(spec: StageSpec, stage: str | None) -> int:
    from hf_pretrain.utils.facts import Facts

    return int(Facts(spec.run_dir).load()["stages"].get(stage, {}).get("seed", 42))


def _read_benchmarks(corpus: Path, options: EvaluateOptions) -> "list[Benchmark]":
    """Items of each benchmark and the ids of those that stood in the raw corpus."""
    from hf_pretrain.corpus.contamination.report import read_rows
    from hf_pretrain.evaluation.contamination_scores import BenchmarkItem
    from hf_pretrain.evaluation.suite import Benchmark
    from hf_pretrain.utils.atomic import read_json

    report = corpus / "contamination.json"
    found: dict[str, set[str]] = {}
    try:
        for entry in read_json(report)["items"] if report.exists() else ():
            found.setdefault(entry["benchmark"], set()).add(str(entry["item_id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{report} is damaged ({one_line(error)}); run the corpus stage again.") from error
    benchmarks = []
    for path in sorted((corpus / "benchmarks").glob("*.jsonl")):
        items = []
        for number, row in enumerate(read_rows(path, f"benchmark {path.stem!r}"), 1):
            question, answer = row.get(options.question_key), row.get(options.answer_key)
            if isinstance(question, str) and isinstance(answer, str):
                items.append(BenchmarkItem(str(row.get(options.id_key, row.get("id", number))), question, answer))
        contaminated = found.get(path.stem, set())
        strangers = contaminated - {item.id for item in items}
        if strangers:
            # Counted under other ids, every item would pass as clean.
            raise UserError(
                f"benchmark {path.stem!r}: contamination.json names the item {sorted(strangers)[0]!r}, which {path} "
                f"does not have under id_key = {options.id_key!r}: name the field that the corpus stage used."
            )
        items.sort(key=lambda item: item.id not in contaminated)
        items = items[: options.max_benchmark_items]
        if items:
            benchmarks.append(Benchmark(path.stem, items, frozenset(contaminated)))
    return benchmarks


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain evaluate`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    return stage_main("evaluate", run, argv)


if __name__ == "__main__":
    raise SystemExit(main())
