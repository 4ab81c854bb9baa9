"""From all instruction rows to the few worth training on, with a count for every row that went.

The order is the cheap and certain first: language, length, refusals and boilerplate, format; then copies (equal
prompts, then prompts that are nearly equal: MinHash proposes, the exact Jaccard similarity decides); then benchmark
items; then caps per source; then a budget. Within the budget rows are taken by quality, source by source in turn, and
a row too close to one already taken is passed over, as in DEITA (2312.15685): score first, diversity as a threshold
on the cosine. LIMA (2305.11206) is the reason that the budget is small. Everything is deterministic, whatever the row
order.
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hf_pretrain.sft.formats import Conversation, ReadResult
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from hf_pretrain.corpus.contamination.index import ContaminationIndex

# Words of the assistant that teach a model to refuse, to talk about itself, or to promise instead of answer.
REFUSALS = re.compile(
    r"\bas an? (?:ai|artificial intelligence|large language)\b"
    r"|\bi(?:'m| am) (?:just |only )?an? (?:ai|language model|chatbot)\b"
    r"|\bi(?:'m| am) (?:sorry|afraid),? (?:but )?i (?:can(?:'|no)t|am unable|do not have)\b"
    r"|\bi (?:cannot|can't|can not|am unable to|am not able to) (?:assist|help|fulfil|comply|provide|answer)\b"
    r"|\bmy (?:knowledge|training) (?:cutoff|cut-off|data)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_VECTOR_SIZE = 1024


@dataclass(frozen=True)
class CurationConfig:
    """What a row must be to be trained on.

    Args:
        languages (`list[str]`, *optional*, defaults to `[]`): Languages to keep, any code; empty keeps all.
        min_prompt_chars (`int`, *optional*, defaults to 8): Shortest prompt, in characters.
        max_prompt_chars (`int`, *optional*, defaults to 8000): Longest prompt.
        min_answer_chars (`int`, *optional*, defaults to 16): Shortest answer, all assistant turns together.
        max_answer_chars (`int`, *optional*, defaults to 8000): Longest answer.
        drop_refusals (`bool`, *optional*, defaults to `True`): Drop answers that refuse or speak of being a program.
        max_repetition (`float`, *optional*, defaults to 0.3): Largest share of an answer's words that lie in a run of
            four words seen before in the same answer.
        near_duplicate_threshold (`float`, *optional*, defaults to 0.7): Jaccard similarity of prompts (shingles of
            three words) from which the worse row goes; 1.0 keeps all but equal prompts.
        decontaminate (`bool`, *optional*, defaults to `True`): Drop rows that hold benchmark items.
        max_per_source (`int`, *optional*): Most rows of one source.
        max_examples (`int`, *optional*): The budget; no limit by default.
        max_similarity (`float`, *optional*, defaults to 0.9): Largest cosine to a row already taken.
        seed (`int`, *optional*, defaults to 0): Breaks ties of equal quality.
    """

    languages: list[str] = field(default_factory=list)
    min_prompt_chars: int = 8
    max_prompt_chars: int = 8000
    min_answer_chars: int = 16
    max_answer_chars: int = 8000
    drop_refusals: bool = True
    max_repetition: float = 0.3
    near_duplicate_threshold: float = 0.7
    decontaminate: bool = True
    max_per_source: int | None = None
    max_examples: int | None = None
    max_similarity: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for low, high in (("min_prompt_chars", "max_prompt_chars"), ("min_answer_chars", "max_answer_chars")):
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise UserError(
                    f"{low} = {getattr(self, low)}, {high} = {getattr(self, high)}; the first may not exceed "
                    "the second."
                )
        for name in ("max_repetition", "near_duplicate_threshold", "max_similarity"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} = {getattr(self, name)}; a number above 0 and up to 1 is expected.")
        for name in ("max_per_source", "max_examples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} = {value}; at least 1 is expected, or leave it out for no limit.")


@dataclass
class CurationResult:
    """Rows kept and the way there.

    Args:
        kept (`list[Conversation]`): Chosen rows, in the order of their ids' hash, so that sources are mixed.
        dropped (`dict[str, dict[str, int]]`): Rows that went, by reason and source.
        rows (`dict[str, int]`): Rows that came in, by source.
        licenses (`dict[str, int]`): Kept rows by licence.
    """

    kept: list[Conversation]
    dropped: dict[str, dict[str, int]]
    rows: dict[str, int]
    licenses: dict[str, int]

    def as_facts(self) -> dict[str, object]:
        """The funnel as plain JSON data; rows in are rows kept plus all rows dropped."""
        return {
            "rows": sum(self.rows.values()),
            "kept": len(self.kept),
            "dropped": {reason: sum(sources.values()) for reason, sources in self.dropped.items()},
            "sources": {
                source: {
                    "rows": rows,
                    "kept": sum(row.source == source for row in self.kept),
                    "dropped": {
                        reason: sources[source] for reason, sources in self.dropped.items() if source in sources
                    },
                }
                for source, rows in sorted(self.rows.items())
            },
            "licenses": self.licenses,
        }


class _Funnel:
    """Rows still in, and counts of those that went."""

    def __init__(self, rows: Sequence[Conversation]) -> None:
        self.rows = list(rows)
        self.dropped: dict[str, Counter[str]] = defaultdict(Counter)

    def keep(self, judge: Callable[[Conversation], str | None]) -> None:
        kept = []
        for row in self.rows:
            reason = judge(row)
            if reason is None:
                kept.append(row)
            else:
                self.dropped[reason][row.source] += 1
        self.rows = kept

    def remove(self, indices: set[int], reason: str) -> None:
        for index in indices:
            self.dropped[reason][self.rows[index].source] += 1
        self.rows = [row for index, row in enumerate(self.rows) if index not in indices]


def curate(
    rows: Sequence[Conversation] | ReadResult,
    config: CurationConfig,
    index: "ContaminationIndex | None" = None,
) -> CurationResult:
    """Chooses the rows to train on.

    Args:
        rows (`Sequence[Conversation]` or `ReadResult`): The rows; a `ReadResult` brings the count of its unusable
            ones.
        config (`CurationConfig`): The rules.
        index (`ContaminationIndex`, *optional*): Benchmark items. Without it nothing is looked up, and the funnel has
            no `contaminated` row.

    Returns:
        `CurationResult`: Kept rows and the funnel.
    """
    conversations = rows.conversations if isinstance(rows, ReadResult) else list(rows)
    counts = Counter(rows.rows) if isinstance(rows, ReadResult) else Counter(row.source for row in conversations)
    # One order for all that follows, so that it does not matter in which order files are read.
    funnel = _Funnel(sorted(conversations, key=lambda row: (-quality(row), _ticket(row, config.seed))))
    if isinstance(rows, ReadResult):
        for source, reasons in rows.unusable.items():
            for reason, count in reasons.items():
                funnel.dropped[reason][source] += count
    if config.languages:
        funnel.keep(_language_rule(config.languages))
    funnel.keep(lambda row: rule_violated(row, config))
    _drop_duplicates(funnel, config)
    if config.decontaminate and index is not None:
        funnel.keep(lambda row: "contaminated" if is_contaminated(row, index) else None)
    if config.max_per_source is not None:
        seen: Counter[str] = Counter()

        def within_cap(row: Conversation) -> str | None:
            seen[row.source] += 1
            return "source_cap" if seen[row.source] > config.max_per_source else None

        funnel.keep(within_cap)
    if config.max_examples is not None:
        too_similar, chosen = select_diverse(funnel.rows, config.max_examples, config.max_similarity)
        rest = set(range(len(funnel.rows))) - set(chosen) - set(too_similar)
        for places, reason in ((too_similar, "too_similar"), (rest, "over_budget")):
            for place in places:
                funnel.dropped[reason][funnel.rows[place].source] += 1
        funnel.rows = [funnel.rows[place] for place in chosen]
    kept = sorted(funnel.rows, key=lambda row: _ticket(row, config.seed))
    return CurationResult(
        kept,
        {reason: dict(sorted(sources.items())) for reason, sources in funnel.dropped.items()},
        dict(sorted(counts.items())),
        dict(sorted(Counter(row.license or "unknown" for row in kept).items())),
    )


def quality(row: Conversation) -> float:
    """A cheap stand-in for a reward model: how much an answer says, and how varied it says it.

    `log(1 + distinct words) * (distinct words / words) ** 0.5`: longer answers score higher, with falling gain, and
    repetition costs. It reads no meaning; a real scorer can replace it by sorting rows beforehand.

    Args:
        row (`Conversation`): The row.

    Returns:
        `float`: At least 0; about 3 to 5 for a paragraph.
    """
    words = _WORD.findall(row.answer.lower())
    if not words:
        return 0.0
    distinct = len(set(words))
    return math.log1p(distinct) * math.sqrt(distinct / len(words))


def repetition(text: str, size: int = 4) -> float:
    """Share of words that lie in a run of `size` words that occurred before.

    Args:
        text (`str`): A text.
        size (`int`, *optional*, defaults to 4): Words in a run.

    Returns:
        `float`: Between 0 and 1; 0 for a text shorter than `size` words.
    """
    words = _WORD.findall(text.lower())
    seen: set[tuple[str, ...]] = set()
    repeated = [False] * len(words)
    for start in range(len(words) - size + 1):
        run = tuple(words[start : start + size])
        if run in seen:
            repeated[start : start + size] = [True] * size
        seen.add(run)
    return sum(repeated) / len(words) if words else 0.0


def rule_violated(row: Conversation, config: CurationConfig) -> str | None:
    """Judges one row by itself.

    Args:
        row (`Conversation`): The row.
        config (`CurationConfig`): The rules.

    Returns:
        `str` or `None`: The first rule broken, or `None`.
    """
    prompt, answer = row.prompt, row.answer
    if len(prompt) < config.min_prompt_chars:
        return "short_prompt"
    if len(prompt) > config.max_prompt_chars:
        return "long_prompt"
    if len(answer) < config.min_answer_chars:
        return "short_answer"
    if len(answer) > config.max_answer_chars:
        return "long_answer"
    if config.drop_refusals and REFUSALS.search(answer):
        return "refusal"
    if "\ufffd" in answer or "\x00" in prompt + answer:
        return "broken_text"
    if answer.count("```") % 2:
        return "open_code_fence"
    if " ".join(answer.split()).casefold() == " ".join(prompt.split()).casefold():
        return "answer_is_prompt"
    if repetition(answer) > config.max_repetition:
        return "repetitive"
    return None


def is_contaminated(row: Conversation, index: "ContaminationIndex") -> bool:
    """Tells whether a row holds a benchmark item, in the prompt or the answer.

    Args:
        row (`Conversation`): The row.
        index (`ContaminationIndex`): Benchmark items.

    Returns:
        `bool`: Whether any item was found.
    """
    return bool(index.match_text(f"{row.prompt}\n{row.answer}"))


def _language_rule(languages: Sequence[str]) -> Callable[[Conversation], str | None]:
    from hf_pretrain.corpus.ingest.language import detect_language
    from hf_pretrain.corpus.ingest.language_codes import canonical_language, known_language

    wanted = {canonical_language(code) for code in languages}

    def judge(row: Conversation) -> str | None:
        language = known_language(row.language) or detect_language(row.answer)[0]
        return None if language in wanted else "language"

    return judge


def _drop_duplicates(funnel: _Funnel, config: CurationConfig) -> None:
    """Equal and nearly equal prompts; the rows come best first, so the best copy stays."""
    from hf_pretrain.corpus.dedup.exact import find_exact_duplicates
    from hf_pretrain.corpus.dedup.minhash import MinhashConfig
    from hf_pretrain.corpus.dedup.verified_clusters import find_near_duplicates

    prompts = [row.prompt.casefold() for row in funnel.rows]
    funnel.remove(set(find_exact_duplicates(prompts, range(len(prompts)))), "duplicate_prompt")
    if config.near_duplicate_threshold >= 1:
        return
    # Prompts are short: shingles of three words, and buckets of four hashes so that a pair at the threshold is
    # proposed with a probability near one (1 - (1 - .7**4)**28 = .9995).
    setting = MinhashConfig(
        num_buckets=28,
        hashes_per_bucket=4,
        ngram_size=3,
        similarity_threshold=config.near_duplicate_threshold,
        seed=config.seed + 1,
    )
    prompts = [row.prompt for row in funnel.rows]
    pairs = find_near_duplicates(prompts, range(len(prompts)), setting)
    funnel.remove({pair.removed for pair in pairs}, "near_duplicate_prompt")


def select_diverse(
    rows: Sequence[Conversation], budget: int, max_similarity: float = 0.9
) -> tuple[list[int], list[int]]:
    """Takes rows up to a budget, source by source in turn, passing over those too close to one already taken.

    Args:
        rows (`Sequence[Conversation]`): Candidates, best first.
        budget (`int`): Most rows to take.
        max_similarity (`float`, *optional*, defaults to 0.9): Largest cosine of word vectors to a taken row.

    Returns:
        `tuple[list[int], list[int]]`: Places passed over for closeness, and places taken, in the order of taking.
    """
    queues: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        queues[row.source].append(place)
    vectors = word_vectors([f"{row.prompt}\n{row.answer}" for row in rows])
    taken: list[int] = []
    passed: list[int] = []
    heads = dict.fromkeys(sorted(queues), 0)
    while len(taken) < budget and heads:
        for source in list(heads):
            # One row a turn: go down the source's queue to the first that is new enough.
            while heads[source] < len(queues[source]):
                place = queues[source][heads[source]]
                heads[source] += 1
                if taken and float((vectors[taken] @ vectors[place]).max()) > max_similarity:
                    passed.append(place)
                    continue
                taken.append(place)
                break
            if heads[source] >= len(queues[source]):
                del heads[source]
            if len(taken) >= budget:
                break
    return passed, taken


def word_vectors(texts: Sequence[str]) -> np.ndarray:
    """Hashed TF-IDF vectors of unit length, a cheap stand-in for embeddings.

    Args:
        texts (`Sequence[str]`): The texts.

    Returns:
        `np.ndarray` of shape `(len(texts), 1024)`: float32 rows; zero for a text without words.
    """
    counts = np.zeros((len(texts), _VECTOR_SIZE), dtype=np.float32)
    columns: dict[str, int] = {}
    for place, text in enumerate(texts):
        for word, count in Counter(_WORD.findall(text.lower())).items():
            if word not in columns:
                digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest()
                columns[word] = int.from_bytes(digest, "big") % _VECTOR_SIZE
            counts[place, columns[word]] += 1 + math.log(count)
    frequency = (counts > 0).sum(0)
    counts *= np.log((1 + len(texts)) / (1 + frequency)).astype(np.float32) + 1
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.where(norms > 0, norms, 1)


def _ticket(row: Conversation, seed: int) -> str:
    """A number for a row that depends on what it is and not on where it stands."""
    return hashlib.blake2b(f"{seed}\0{row.source}\0{row.id}\0{row.prompt}".encode(), digest_size=16).hexdigest()
