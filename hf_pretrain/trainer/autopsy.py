"""The autopsy of a training step: its batch at the weights before and now, in fp32 and in the run's precision.

`examine` puts together what was measured and the verdict, as plain JSON data; the two ways to its inputs, a run that
is training and a run folder, are `autopsy_live` and `autopsy_folder`. Losses are compared between this batch and a
reference batch (the one before it), so that it does not matter that training adds z-loss and router terms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.trace import trace_sample
from hf_pretrain.trainer.batch_probe import BatchReading, read_batch
from hf_pretrain.trainer.verdict import DocumentLoss, Evaluation, Evidence, verdict


SCHEMA = 1
# Documents that are listed, worst first.
LISTED = 50
# Characters of a document that are shown.
EXCERPT = 160
# How far Adam can move a weight in one update, in learning rates (about 1.2 for the usual betas), doubled.
_REACH = 2.4


@dataclass
class Batch:
    """The rows of a step and what they hold.

    Args:
        rows (`list[dict]`): `input_ids`, `labels`, `position_ids` of each.
        samples (`list[int]`): Their numbers in the schedule.
        documents (`list[list[tuple]]`): For each row `(start, stop, source, name, url)` of its documents, in order.
        sequences (`int`): Rows of the whole step; more than there are here where not all are read.
    """

    rows: list[dict[str, Any]]
    samples: list[int]
    documents: list[list[tuple[int, int, str, str, str | None]]]
    sequences: int


@dataclass
class Weights:
    """A model to evaluate the batch with.

    Args:
        model (`torch.nn.Module`): The model, out of its wrappers.
        name (`str`): Where its weights are from, for people.
        step (`int`): Updates made when they were so.
    """

    model: torch.nn.Module
    name: str
    step: int


@dataclass
class StepRecord:
    """What the run itself says about the step.

    Args:
        step (`int`): The step, from 1.
        events (`list[dict]`): The spike callback's events of the step.
        precision (`torch.dtype`): The run computes in it.
        learning_rate (`float`, *optional*): In use.
        planned_learning_rate (`float`, *optional*): By the schedule.
        planned_distance (`float`, *optional*): Sum of the schedule's rates between the two sets of weights; `None`
            where no bound on the optimizer's updates is known.
        weight_decay (`float`, *optional*, defaults to 0.0): Of the optimizer.
        gradient_norms (`dict[str, float]`): By part, of the step itself, before clipping.
        notes (`list[str]`): What is missing, and why.
    """

    step: int
    events: list[dict[str, Any]] = field(default_factory=list)
    precision: torch.dtype = torch.float32
    learning_rate: float | None = None
    planned_learning_rate: float | None = None
    planned_distance: float | None = None
    weight_decay: float = 0.0
    gradient_norms: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def take_batch(dataset: MixtureDataset, positions: Sequence[int], most: int) -> Batch:
    """Reads the rows of a step and names their documents.

    Args:
        dataset (`MixtureDataset`): The run's data.
        positions (`Sequence[int]`): Positions of the step's samples.
        most (`int`): Rows to read at most; of more, evenly spaced ones.

    Returns:
        `Batch`: The rows.
    """
    count = min(most, len(positions))
    chosen = [positions[index * len(positions) // count] for index in range(count)]
    rows = [dataset[position] for position in chosen]
    samples = [int(row["sample_index"]) for row in rows]
    return Batch(rows, samples, [_documents(dataset, sample) for sample in samples], len(positions))


def _documents(dataset: MixtureDataset, sample: int) -> list[tuple[int, int, str, str, str | None]]:
    trace, place, found = trace_sample(dataset, sample), 0, []
    for span in trace.spans:
        length = span.stop - span.start
        record = span.record or {}
        name = str(record.get("id") or f"document {span.document_index}")
        url = record.get("url")
        found.append((place, place + length, trace.source, name, None if url is None else str(url)))
        place += length
    return found


def rank_documents(batch: Batch, losses: torch.Tensor, reference: float | None) -> list[DocumentLoss]:
    """Orders a batch's documents by what they lose.

    Args:
        batch (`Batch`): The batch.
        losses (`torch.Tensor` of shape `(rows, sequence)`): Loss of each token; only labelled ones count.
        reference (`float`, *optional*): The usual loss; by default the mildest document's.

    Returns:
        `list[DocumentLoss]`: By the part each has in what the batch loses above the reference, worst first.
    """
    found = []
    for row, sample, spans, values in zip(batch.rows, batch.samples, batch.documents, losses.double(), strict=True):
        labelled = torch.as_tensor(row["labels"]).cpu() != -100
        labelled[0] = False
        for start, stop, source, name, url in spans:
            inside = values[start:stop][labelled[start:stop]]
            if inside.numel():
                found.append((float(inside.mean()), inside.numel(), source, name, url, sample))
    finite = [loss for loss, *_ in found if math.isfinite(loss)]
    level = reference if reference is not None and math.isfinite(reference) else min(finite, default=0.0)
    broken = [not math.isfinite(loss) for loss, *_ in found]
    # Where some losses are not finite they hold all of the excess: nothing else can be weighed against them.
    weights = (
        [float(bad) for bad in broken]
        if any(broken)
        else [max(loss - level, 0.0) * count for loss, count, *_ in found]
    )
    total = math.fsum(weights) or 1.0
    ranked = [
        DocumentLoss(loss, count, weight / total, source, name, url, sample)
        for (loss, count, source, name, url, sample), weight in zip(found, weights, strict=True)
    ]
    return sorted(ranked, key=lambda one: (-one.excess_share, -one.loss))


def examine(
    record: StepRecord,
    batch: Batch | None,
    reference: Batch | None,
    previous: Weights | None,
    current: Weights | None,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Evaluates the batch again and reaches the verdict.

    Args:
        record (`StepRecord`): What the run says.
        batch (`Batch`, *optional*): The step's batch.
        reference (`Batch`, *optional*): The batch it is compared with.
        previous (`Weights`, *optional*): Those of a checkpoint before the step.
        current (`Weights`, *optional*): Those of the step (`step` is one less than the record's), or later ones.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): With it, the first words of documents are shown.

    Returns:
        `dict[str, Any]`: The autopsy as JSON data; numbers that are not finite are text.
    """
    readings: dict[tuple[str, str], tuple[BatchReading, BatchReading | None]] = {}
    precisions = [torch.float32, *([record.precision] if record.precision != torch.float32 else [])]
    for name, weights in (("previous", previous), ("current", current)):
        if weights is None or batch is None:
            continue
        for precision in precisions:
            other = None
            if reference is not None:
                other = read_batch(weights.model, reference.rows, precision, gradients=precision == torch.float32)
            readings[name, _name(precision)] = read_batch(weights.model, batch.rows, precision), other
    exact = current is not None and current.step == record.step - 1
    named = "current" if (exact or previous is None) else "previous"
    documents: list[DocumentLoss] = []
    if batch is not None and (named, "float32") in readings:
        reading, other = readings[named, "float32"]
        documents = rank_documents(batch, reading.token_losses, None if other is None else other.loss)
    nonfinite, total, moved = _compare(previous, current, record)
    evidence = Evidence(
        step=record.step,
        **_recorded(record.events),
        evaluations=[_evaluation(key, *pair) for key, pair in readings.items()],
        exact_weights=exact,
        learning_rate=record.learning_rate,
        planned_learning_rate=record.planned_learning_rate,
        nonfinite_weights=nonfinite,
        num_weights=total,
        moved_too_far=moved,
        documents=documents,
    )
    found = verdict(evidence)
    parts = {name: readings[name, "float32"][0] for name in ("previous", "current") if (name, "float32") in readings}
    texts = {} if batch is None or tokenizer is None else _excerpts(batch, documents[:LISTED], tokenizer)
    report = {
        "schema": SCHEMA,
        "step": record.step,
        "verdict": {"kind": found.kind, "lines": found.lines},
        "events": record.events,
        "weights": {
            name: {"name": weights.name, "step": weights.step, "exact": weights.step == record.step - 1}
            for name, weights in (("previous", previous), ("current", current))
            if weights is not None
        },
        "precision": _name(record.precision),
        "batch": None
        if batch is None
        else {"sequences": batch.sequences, "evaluated": len(batch.rows), "samples": batch.samples},
        "evaluations": [vars(one) for one in evidence.evaluations],
        "num_documents": len(documents),
        "documents": [
            {**vars(one), **({"text": texts[index]} if index in texts else {})}
            for index, one in enumerate(documents[:LISTED])
        ],
        "documents_at": named if documents else None,
        "gradient_norms": {
            **{name: reading.layer_grad_norms for name, reading in parts.items()},
            **({"step": record.gradient_norms} if record.gradient_norms else {}),
        },
        "routers": {name: reading.routers for name, reading in parts.items() if reading.routers},
        "learning_rate": {"used": record.learning_rate, "planned": record.planned_learning_rate},
        "weights_compared": {"total": total, "not_finite": nonfinite, "moved_too_far": moved},
        "notes": record.notes,
    }
    return speakable(report)


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _evaluation(key: tuple[str, str], reading: BatchReading, other: BatchReading | None) -> Evaluation:
    return Evaluation(
        *key,
        loss=reading.loss,
        reference_loss=None if other is None else other.loss,
        grad_norm=reading.grad_norm,
        reference_grad_norm=None if other is None else other.grad_norm,
        lse_max=reading.lse_max,
    )


def _recorded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The run's own numbers, of the spike callback's events."""
    found: dict[str, Any] = {}
    for event in events:
        value = float(event["value"])  # numbers that are not finite were written as text
        if event["kind"] == "loss":
            found |= {"recorded_loss": value, "usual_loss": event["mean"], "usual_loss_std": event["std"] or 0.0}
        elif event["kind"] == "grad_norm":
            found |= {"recorded_grad_norm": value, "usual_grad_norm": event["mean"]}
    return found


@torch.no_grad()
def _compare(previous: Weights | None, current: Weights | None, record: StepRecord) -> tuple[int, int, int]:
    """Counts weights that are not finite, all weights, and those that moved further than the updates between."""
    if current is None:
        return 0, 0, 0
    before = {} if previous is None else dict(previous.model.named_parameters())
    nonfinite = total = moved = 0
    for name, weight in current.model.named_parameters():
        weight, total = weight.float(), total + weight.numel()
        nonfinite += int((~weight.isfinite()).sum())
        if record.planned_distance is not None and name in before and before[name].shape == weight.shape:
            old = before[name].to(weight.device).float()
            # One rounding of a weight may be on top, and what decay takes is a share of the weight.
            reach = record.planned_distance * (_REACH + record.weight_decay * old.abs()) + 1e-6 * old.abs() + 1e-12
            moved += int(((weight - old).abs() > reach).sum())
    return nonfinite, total, moved


def _excerpts(batch: Batch, documents: list[DocumentLoss], tokenizer: Any) -> dict[int, str]:
    """The first words of each listed document, as the batch holds it."""
    held: dict[tuple[int, str], list[list[int]]] = {}
    for row, sample, spans in zip(batch.rows, batch.samples, batch.documents, strict=True):
        ids = torch.as_tensor(row["input_ids"]).tolist()
        for start, stop, _, name, _ in spans:
            held.setdefault((sample, name), []).append(ids[start:stop][:EXCERPT])
    found = {}
    for index, document in enumerate(documents):
        pieces = held.get((document.sample_index, document.document))
        if pieces:
            found[index] = tokenizer.decode(pieces[0])[:EXCERPT]
    return found


def speakable(value: Any) -> Any:
    """Makes a report plain JSON data.

    Args:
        value (`Any`): Numbers, texts, lists, mappings.

    Returns:
        `Any`: The same, with numbers that are not finite as text (`"nan"`, `"inf"`).
    """
    if isinstance(value, dict):
        return {str(key): speakable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [speakable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
