"""`hf-pretrain evaluate`: bits per byte by domain, by position, and of benchmark answers, for the models of a run.

Writes `evaluation.json` into the stage's folder and the same content into `facts.json`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.scripts.execution import stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from hf_pretrain.data.token_source import TokenSource

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
class EvaluateOptions:
    """Keys of an evaluate stage's file.

    Args:
        corpus (`str`): The corpus stage, for tokenizer, held-out tokens and benchmarks.
        models (`list[str]`): Stages or model folders to score, in order; `untrained` is the first stage's model before
            its first step.
        untrained_from (`str`, *optional*): The stage whose untrained model is meant; by default the first of `models`.
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
    """

    corpus: str
    models: list[str]
    untrained_from: str | None = None
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
    from transformers import AutoTokenizer

    from hf_pretrain.evaluation import bits_per_byte, contamination_scores
    from hf_pretrain.evaluation.byte_lengths import token_byte_lengths
    from hf_pretrain.utils.atomic import write_json
    from hf_pretrain.utils.facts import Facts

    options = check(spec)
    corpus = Path(spec.resolve(options.corpus))
    tokenizer_dir = corpus / "tokenizer"
    if not tokenizer_dir.is_dir():
        raise UserError(f"corpus = {options.corpus}; {tokenizer_dir} is missing: run the corpus stage first.")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    lengths = token_byte_lengths(tokenizer)
    sources = _validation_sources(corpus, options.corpus)
    documents = {
        source.name: list(
            bits_per_byte.iterate_documents(
                source, options.max_tokens_per_source, max_document_tokens=options.max_document_tokens
            )
        )
        for source in sources
    }
    documents = {name: found for name, found in documents.items() if found}
    if not documents:
        raise UserError(f"corpus = {options.corpus}; its validation tokens hold no document of two tokens or more.")
    long_documents = _long_documents(sources, options.long_context)
    benchmarks = _read_benchmarks(corpus, options)
    long_models = set(options.long_context.models) if options.long_context and long_documents else set()
    names = [*options.models, *sorted(long_models - set(options.models))]

    scores: dict[str, dict[str, float]] = {}
    nats: dict[str, float] = {}
    sizes: dict[str, dict[str, int]] = {}
    by_position: dict[str, dict[str, list[float]]] = {}
    benchmark_scores: dict[str, dict[str, Any]] = {}
    for name in names:
        model = _load_model(spec, name, options.untrained_source)
        if name in options.models:
            parts = {
                source: bits_per_byte.evaluate_documents(
                    model, found, lengths, options.context_length, options.tokens_per_batch, f"{name} on {source}"
                )
                for source, found in documents.items()
            }
            total = sum(parts.values(), bits_per_byte.ByteScore(0.0, 0, 0))
            scores[name] = {
                **{source: part.bits_per_byte for source, part in parts.items()},
                "all": total.bits_per_byte,
            }
            nats[name] = total.nats_per_token
            sizes = {
                source: {"tokens": part.num_tokens, "bytes": part.num_bytes, "documents": part.num_documents}
                for source, part in (*parts.items(), ("all", total))
            }
            for benchmark, (items, found_ids) in benchmarks.items():
                item_scores = contamination_scores.score_items(
                    model, tokenizer, items, lengths, options.context_length, options.tokens_per_batch
                )
                benchmark_scores.setdefault(benchmark, {})[name] = contamination_scores.split_scores(
                    item_scores, found_ids, options.bootstrap_resamples, options.confidence, options.seed
                )
        if name in long_models:
            by_position[name] = {
                str(length): [
                    score.bits_per_byte
                    for score in bits_per_byte.evaluate_positions(
                        model, long_documents, lengths, length, options.long_context.edges, options.tokens_per_batch
                    )
                ]
                for length in options.long_context.context_lengths
            }
        del model

    payload: dict[str, Any] = {
        "bits_per_byte": scores,
        "nats_per_token": nats,
        "scored": sizes,
        "convention": bits_per_byte.CONVENTION.format(context=options.context_length),
        "benchmarks": benchmark_scores,
        "benchmark_convention": contamination_scores.CONVENTION.format(
            resamples=options.bootstrap_resamples, confidence=options.confidence
        ),
    }
    if by_position:
        edges = options.long_context.edges
        payload["long_context"] = {
            "edges": edges,
            "documents": len(long_documents),
            "bits_per_byte": by_position,
            "convention": "bits per byte of the tokens between two positions of a document, the same tokens at every "
            "context length",
        }
    write_json(spec.stage_dir / "evaluation.json", payload)
    Facts(spec.run_dir).record_stage(spec.name, spec.kind, payload)


def _validation_sources(corpus: Path, name: str) -> "list[TokenSource]":
    from hf_pretrain.data.token_source import TokenSource

    folder = corpus / "tokens" / "validation"
    found = sorted(path.parent for path in folder.glob("*/source.json"))
    if not found:
        raise UserError(
            f"corpus = {name}; {folder} holds no validation tokens: run the corpus stage with a held-out split."
        )
    return [TokenSource.open(path) for path in found]


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
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import hf_pretrain.models  # noqa: F401 (registers Strata with the Auto classes)

    folder = spec.resolve(untrained_source if name == UNTRAINED else name)
    path = Path(folder) / "model" if (Path(folder) / "model").is_dir() else folder
    if isinstance(path, Path) and not (path / "config.json").exists():
        raise UserError(f"models: {name}; {path} holds no model: run that stage first or name a model folder.")
    if name == UNTRAINED:
        torch.manual_seed(_seed_of(spec, untrained_source))
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32).eval()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def _seed_of(spec: StageSpec, stage: str | None) -> int:
    from hf_pretrain.utils.facts import Facts

    return int(Facts(spec.run_dir).load()["stages"].get(stage, {}).get("seed", 42))


def _read_benchmarks(corpus: Path, options: EvaluateOptions) -> dict[str, tuple[list[Any], set[str]]]:
    """Items of each benchmark and the ids of those that stood in the raw corpus."""
    from hf_pretrain.corpus.contamination.report import read_rows
    from hf_pretrain.evaluation.contamination_scores import BenchmarkItem
    from hf_pretrain.utils.atomic import read_json

    report = corpus / "contamination.json"
    found: dict[str, set[str]] = {}
    for entry in read_json(report)["items"] if report.exists() else ():
        found.setdefault(entry["benchmark"], set()).add(str(entry["item_id"]))
    benchmarks = {}
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
                f"benchmark {path.stem!r}: contamination.json names the item {sorted(strangers)[0]!r}, which "
                f"{path} does "
                f"not have under id_key = {options.id_key!r}: name the field that the corpus stage used."
            )
        items.sort(key=lambda item: item.id not in contaminated)
        items = items[: options.max_benchmark_items]
        if items:
            benchmarks[path.stem] = (items, contaminated)
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
