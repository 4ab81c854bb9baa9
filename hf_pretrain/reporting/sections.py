"""Sections on what was reached and how training went."""

from collections.abc import Sequence
from typing import Any

from hf_pretrain.reporting.blocks import Block, Column, Figure, Section, Table
from hf_pretrain.reporting.figures import (
    CATEGORICAL,
    Mark,
    Series,
    both,
    dumbbells,
    heat_map,
    intervals,
    line_chart,
    smooth,
    stacked_shares,
)
from hf_pretrain.reporting.run_data import RunData, TrainingLog, last_router_load, mixture_over_time
from hf_pretrain.reporting.sections_autopsy import autopsy_blocks, effect_blocks
from hf_pretrain.reporting.sections_compare import comparison_blocks
from hf_pretrain.utils.number_text import count, duration, number, size


HEAD_WAYS = {"naive": "naive", "chunked": "chunked", "liger": "Liger"}
_MODEL_COLORS = ("c8", "c1", "c3", "c2", "c4", "c5", "c6", "c7")


def evaluation_sections(run: RunData) -> list[Section]:
    """Bits per byte, long context, benchmarks.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: Three sections; what was not measured is empty.
    """
    facts = run.stage("evaluate")
    return [
        Section("result", "Result", [*_bits_per_byte(facts), *memorisation_blocks(facts), *comparison_blocks(run)]),
        Section("context", "Long context", _long_context(facts)),
        Section("benchmarks", "Benchmarks", _benchmarks(run, facts)),
    ]


def _bits_per_byte(facts: dict[str, Any]) -> list[Block]:
    bits = facts.get("bits_per_byte", {})
    if not bits:
        return []
    models = list(bits)
    sources = [*sorted({name for values in bits.values() for name in values} - {"all"}), "all"]
    rows = [(source, [bits[model][source] for model in models]) for source in sources]
    colors = _cycle(_MODEL_COLORS, len(models))
    figure = Figure(
        "Bits per byte of held-out text, by source",
        safe(
            both(
                lambda variant: dumbbells(
                    variant,
                    rows,
                    models,
                    colors,
                    "Bits per byte by source and model",
                    "bits per byte, lower is better",
                )
            )
        ),
        f"Convention: {facts.get('convention', 'not recorded')}.",
        [
            (short_name(model), color, place == 0)
            for place, (model, color) in enumerate(zip(models, colors, strict=True))
        ],
        table=Table(
            [Column("source"), *(Column(short_name(model), True) for model in models), Column("tokens scored", True)],
            [
                [
                    source,
                    *(number(value) for value in values),
                    number(facts.get("scored", {}).get(source, {}).get("tokens")),
                ]
                for source, values in rows
            ],
            ("all",),
        ),
    )
    return [Block("figure", figure=figure)]


def memorisation_blocks(facts: dict[str, Any]) -> list[Block]:
    """Training text that models give back, by how often they read it.

    Args:
        facts (`dict`): Facts of an evaluate stage.

    Returns:
        `list[Block]`: A table and its convention; nothing where it was not measured.
    """
    found = facts.get("memorisation", {})
    rows = [
        [
            model,
            group,
            number(rate["passages"]),
            number(rate["extracted"]),
            f"{rate['rate']:.1%} ({rate['interval'][0]:.1%} to {rate['interval'][1]:.1%})",
        ]
        for model, groups in found.get("rates", {}).items()
        for group, rate in groups.items()
    ]
    if not rows:
        return []
    heads = [Column("model"), Column("read"), *(Column(head, True) for head in ("passages", "given back", "rate"))]
    title = f"Training text of {found['stage']} given back word for word"
    return [
        Block("table", title=title, table=Table(heads, rows)),
        Block("note", f"Convention: {found['convention']}."),
    ]


def _long_context(facts: dict[str, Any]) -> list[Block]:
    context = facts.get("long_context", {})
    scores = context.get("bits_per_byte", {})
    if not scores:
        return []
    edges = context["edges"]
    middles = [(low + high) / 2 for low, high in zip(edges[:-1], edges[1:], strict=True)]
    curves = [
        (f"{short_name(model)}, window {length}", values)
        for model, by in scores.items()
        for length, values in by.items()
    ]
    colors = _cycle(("c8", "c2", "c7", "c1", "c3", "c4", "c5", "c6"), len(curves))
    series = [Series(name, middles, y, color) for (name, y), color in zip(curves, colors, strict=True)]
    lengths = [f"{low} to {high}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
    figure = Figure(
        "Does a longer window help, and where?",
        safe(
            both(
                lambda variant: line_chart(
                    variant,
                    series,
                    "Bits per byte by position in the document",
                    "tokens from the start of the document",
                    "bits per byte",
                    height=260.0,
                    name_ends=False,
                )
            )
        ),
        f"By model and window length in tokens, over {count(context.get('documents'))} documents. Convention: "
        f"{context.get('convention', 'not recorded')}.",
        [(name, color, False) for (name, _), color in zip(curves, colors, strict=True)],
        table=Table(
            [Column("position in tokens"), *(Column(name, True) for name, _ in curves)],
            [[length, *(number(y[place]) for _, y in curves)] for place, length in enumerate(lengths)],
        ),
    )
    return [Block("figure", figure=figure)]


def _benchmarks(run: RunData, facts: dict[str, Any]) -> list[Block]:
    blocks = []
    found = run.stage("corpus").get("contamination", {})
    if found:
        action = run.stage("corpus").get("contamination_action", "")
        blocks.append(
            Block(
                "text",
                "Before training, every document of the raw corpus was searched for the items of these benchmarks"
                + (f"; the action on what was found: {action}." if action else "."),
            )
        )
        keys = ("items", "checked", "unchecked", "contaminated", "documents")
        heads = ("items", "checked", "too short to check", "found in the corpus", "in documents")
        blocks.append(
            Block(
                "table",
                table=Table(
                    [Column("benchmark"), Column("revision"), *(Column(head, True) for head in heads)],
                    [
                        [name, str(row.get("revision") or "-"), *(number(row.get(key)) for key in keys)]
                        for name, row in found.items()
                    ],
                ),
            )
        )
    for benchmark, models in facts.get("benchmarks", {}).items():
        rows, table = [], []
        for model, groups in models.items():
            found_scores = [
                (score["bits_per_byte"], score["low"], score["high"], color)
                for score, color in ((groups.get("clean", {}), "c1"), (groups.get("contaminated", {}), "c2"))
                if "bits_per_byte" in score
            ]
            if found_scores:
                rows.append((short_name(model), found_scores))
            table.append(
                [model]
                + [
                    _interval(groups.get(group, {})) if "bits_per_byte" in groups.get(group, {}) else "no items"
                    for group in ("all", "clean", "contaminated")
                ]
            )
        if not rows:
            continue
        sizes = {group: score.get("items") for group, score in next(iter(models.values())).items()}
        drawing = both(
            lambda variant, rows=rows, benchmark=benchmark: intervals(
                variant, rows, f"Scores on {benchmark}", "bits per byte of the reference answer, lower is better"
            )
        )
        blocks.append(
            Block(
                "figure",
                figure=Figure(
                    benchmark,
                    safe(drawing),
                    f"Convention: {facts.get('benchmark_convention', 'not recorded')}.",
                    [
                        (f"clean ({number(sizes.get('clean'))} items)", "c1", False),
                        (f"found in the raw corpus ({number(sizes.get('contaminated'))} items)", "c2", False),
                    ],
                    table=Table(
                        [Column("model"), Column("all", True), Column("clean", True), Column("contaminated", True)],
                        table,
                    ),
                ),
            )
        )
    return blocks


def _interval(score: dict[str, Any]) -> str:
    return f"{number(score['bits_per_byte'])} ({number(score['low'])} to {number(score['high'])})"


def training_sections(run: RunData) -> list[Section]:
    """Loss, learning rate, mixture, routers, spikes.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: Three sections; what was not logged is empty.
    """
    stages = run.stages("pretrain")
    marks = [Mark(log.offset, short_name(log.name)) for log in run.logs]
    return [
        Section(
            "training",
            "Training",
            [
                *_curves(run.logs, marks),
                *_stage_table(stages),
                *_head_table(stages),
                *_spikes(stages),
                *effect_blocks(stages),
            ],
        ),
        Section("mixture", "Data mixture", _mixture(run, stages, marks)),
        Section("routers", "Routers", _routers(run, marks)),
    ]


def _curves(logs: Sequence[TrainingLog], marks: Sequence[Mark]) -> list[Block]:
    blocks = []
    x, raw, running, window = joined(logs, "ce_loss", "loss")
    if len(x) > 1:
        series = [Series("loss", x, running, "c1", raw)]
        drawing = both(
            lambda variant: line_chart(
                variant, series, "Training loss over tokens", "tokens seen", "nats a token", marks, 320.0
            )
        )
        caption = f"Cross-entropy on training batches{how_smoothed(window)}."
        blocks.append(Block("figure", figure=Figure("Loss", safe(drawing), caption)))
    x, raw, _, _ = joined(logs, "learning_rate")
    if len(x) > 1:
        rate = [Series("learning rate", x, raw, "c3")]
        drawing = both(
            lambda variant: line_chart(
                variant,
                rate,
                "Learning rate over tokens",
                "tokens seen",
                "learning rate",
                marks,
                190.0,
                from_zero=True,
            )
        )
        caption = "Peak and shape of each stage are in its facts; the schedule counts updates."
        blocks.append(Block("figure", figure=Figure("Learning rate", safe(drawing), caption)))
    return blocks


def joined(logs: Sequence[TrainingLog], *keys: str) -> tuple[list[float], list[float], list[float], int]:
    """Values of all stages, one after the other; the running median does not cross from one stage into the next.

    Args:
        logs (`Sequence[TrainingLog]`): The stages.
        keys (`str`): Names of the metric; in each entry the first that is there counts.

    Returns:
        `tuple[list[float], list[float], list[float], int]`: Tokens, values, their running median, and how many entries
        it spans.
    """
    x, raw, running = [], [], []
    longest = max((len(log.lines) for log in logs), default=0)
    window = max(1, longest // 25) | 1
    for log in logs:
        places, values = log.values(*keys)
        x += places
        raw += values
        running += smooth(values, window)
    return x, raw, running, window


def _stage_table(stages: dict[str, dict[str, Any]]) -> list[Block]:
    if not stages:
        return []
    rows = []
    for name, facts in stages.items():
        data, loss, speed = facts.get("data", {}), facts.get("loss", {}), facts.get("throughput", {})
        rows.append(
            [
                name,
                count(data.get("train_tokens")),
                number(data.get("steps")),
                number(data.get("seq_length")),
                f"{number(loss.get('first'), 2)} to {number(loss.get('last'), 2)}",
                count(speed.get("tokens_per_second")),
                duration(speed.get("seconds", facts.get("seconds"))),
            ]
        )
    heads = ("tokens", "updates", "window", "loss", "tokens/s", "time")
    blocks = [Block("table", table=Table([Column("stage"), *(Column(head, True) for head in heads)], rows))]
    used = [facts.get("throughput", {}) for facts in stages.values()]
    if any(speed.get("mfu") is not None for speed in used):
        shown = ", ".join(f"{name} {number(facts['throughput'].get('mfu'))}" for name, facts in stages.items())
        blocks.append(Block("note", f"Model FLOPs utilisation: {shown} ({used[0].get('flop_convention', '')})."))
    for name, facts in stages.items():
        speed = facts.get("throughput", {})
        if speed.get("goodput") is not None and speed.get("lost_seconds"):
            lost = ", ".join(f"{kind} {duration(value)}" for kind, value in speed["lost_seconds"].items() if value)
            share = f"{100 * speed['goodput']:.1f}"
            blocks.append(
                Block("note", f"Goodput of {name}: {share} % of its time went to steps; lost to {lost or 'nothing'}.")
            )
    return blocks


def _head_table(stages: dict[str, dict[str, Any]]) -> list[Block]:
    """What the output head of a micro-batch takes, by the ways to compute its loss."""
    found = {name: facts["head_memory"] for name, facts in stages.items() if facts.get("head_memory")}
    if not found:
        return []
    columns = [Column("output head"), *(Column(head, True) for head in ("tokens", "vocabulary", *HEAD_WAYS.values()))]
    rows = [
        [name, number(head["num_tokens"]), number(head["vocab_size"]), *(size(head[way]) for way in HEAD_WAYS)]
        for name, head in found.items()
    ]
    note = (
        "Peak bytes of head and loss for one micro-batch, gradients included, by formula: all logits at once as stock "
        "models do, this package's chunks, and Liger's fused kernel."
    )
    return [Block("table", table=Table(columns, rows)), Block("note", note)]


def _spikes(stages: dict[str, dict[str, Any]]) -> list[Block]:
    spikes = [(name, spike) for name, facts in stages.items() for spike in facts.get("spikes") or []]
    if not stages:
        return []
    if not spikes:
        return [Block("note", "Loss spikes: none was detected.")]
    keys = [
        key
        for key in dict.fromkeys(key for _, spike in spikes for key in spike)
        if all(isinstance(spike.get(key), (int, float, str, type(None))) for _, spike in spikes)
    ]
    numeric = {key: all(not isinstance(spike.get(key), str) for _, spike in spikes) for key in keys}
    table = Table(
        [Column("stage"), *(Column(key.replace("_", " "), numeric[key]) for key in keys)],
        [
            [name, *(str(spike.get(key, "-")) if not numeric[key] else number(spike.get(key), 2) for key in keys)]
            for name, spike in spikes
        ],
    )
    return [Block("table", title="Loss spikes", table=table), *autopsy_blocks(stages), *_rewinds(stages)]


def _rewinds(stages: dict[str, dict[str, Any]]) -> list[Block]:
    rows = [
        [
            name,
            number(rewind.get("spike_step")),
            number(rewind.get("to_step")),
            "{} to {}".format(*rewind.get("skipped") or ("-", "-")),
            number(rewind.get("attempt")),
            number(rewind.get("lr_factor")),
        ]
        for name, facts in stages.items()
        for rewind in facts.get("rewinds") or []
    ]
    if not rows:
        return []
    heads = ("spike at step", "back to step", "samples left out (end exclusive)", "attempt", "rate times")
    table = Table([Column("stage"), *(Column(head, True) for head in heads)], rows)
    return [Block("table", title="Rewinds", table=table)]


def _mixture(run: RunData, stages: dict[str, dict[str, Any]], marks: Sequence[Mark]) -> list[Block]:
    blocks = []
    borders, shares = mixture_over_time(run.logs)
    colors = source_colors(run)
    if len(borders) > 1:
        drawing = both(
            lambda variant: stacked_shares(
                variant, borders, shares, colors, "Share of each source over tokens", "tokens seen", marks
            )
        )
        legend = [(name, colors[name], False) for name in reversed(shares)]
        figure = Figure(
            "What was read when",
            safe(drawing),
            "Share of each source in the tokens read between two log entries; the lines across part the stages.",
            legend,
        )
        blocks.append(Block("figure", figure=figure))
    rows = []
    for stage, facts in stages.items():
        for source, data in facts.get("data", {}).get("sources", {}).items():
            rows.append(
                [
                    stage,
                    source,
                    count(data.get("tokens")),
                    count(data.get("planned_tokens", data.get("tokens"))),
                    number(data.get("share")),
                    number(data.get("planned_share")),
                    number(data.get("epochs"), 2),
                    count(data.get("unique_tokens_read")),
                    count(data.get("unique_tokens")),
                ]
            )
    if rows:
        blocks.append(Block("table", title="Share of each source, by stage", table=_share_table(stages)))
        heads = ("read", "planned", "share", "planned", "epochs", "unique read", "source holds")
        columns = [Column("stage"), Column("source"), *(Column(head, True) for head in heads)]
        blocks.append(
            Block("details", title="Tokens, plan and epochs, by stage and source", table=Table(columns, rows))
        )
    return blocks


def _share_table(stages: dict[str, dict[str, Any]]) -> Table:
    by_stage = {name: facts.get("data", {}).get("sources", {}) for name, facts in stages.items()}
    names = sorted({source for sources in by_stage.values() for source in sources})
    return Table(
        [Column("source"), *(Column(short_name(stage), True) for stage in by_stage)],
        [[name, *(number(sources.get(name, {}).get("share")) for sources in by_stage.values())] for name in names],
    )


def how_smoothed(window: int) -> str:
    """What a caption says about smoothing.

    Args:
        window (`int`): Entries that the running median spans.

    Returns:
        `str`: Empty where nothing was smoothed.
    """
    return f". Thin: as logged; thick: running median of {window} entries" if window > 1 else ", as logged"


def short_name(stage: str) -> str:
    """A stage's name as people say it.

    Args:
        stage (`str`): E.g. `"4_long_context"`.

    Returns:
        `str`: E.g. `"long context"`.
    """
    head, _, rest = stage.partition("_")
    return (rest if head.isdigit() and rest else stage).replace("_", " ")


def source_colors(run: RunData) -> dict[str, str]:
    """The colour of each source, the same in every figure.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `dict[str, str]`: Variable by name.
    """
    names = set(run.stage("corpus").get("sources", {}))
    names |= set(mixture_over_time(run.logs)[1])
    ordered = sorted(names)
    return dict(zip(ordered, _cycle(CATEGORICAL, len(ordered)), strict=True))


def _routers(run: RunData, marks: Sequence[Mark]) -> list[Block]:
    blocks = []
    stage, load = last_router_load(run.logs)
    if load:
        drawing = both(lambda variant: heat_map(variant, load, "Load of each expert by layer", "layer", "expert"))
        caption = (
            f"Tokens an expert received at the last log entry of {stage}, over the mean of its layer: 1.00 is balance."
        )
        table = Table(
            [Column("layer"), *(Column(f"expert {place}", True) for place in range(len(load[0])))],
            [[str(layer), *(number(value, 2) for value in row)] for layer, row in enumerate(load)],
        )
        blocks.append(Block("figure", figure=Figure("Load of the experts", safe(drawing), caption, table=table)))
    x, raw, running, _ = joined(run.logs, "router/max_vio")
    if len(x) > 1:
        series = [Series("max violation", x, running, "c2", raw)]
        drawing = both(
            lambda variant: line_chart(
                variant, series, "Worst imbalance over tokens", "tokens seen", "MaxVio", marks, 200.0, from_zero=True
            )
        )
        caption = "Load of the busiest expert over the mean, less one, in the worst layer; 0 is balance."
        blocks.append(Block("figure", figure=Figure("Worst imbalance", safe(drawing), caption)))
    return blocks


def _cycle(colors: Sequence[str], length: int) -> list[str]:
    return [colors[place % len(colors)] for place in range(length)]


def safe(svg: str) -> Any:
    """Marks a drawing as HTML that needs no escaping; its texts are escaped already.

    Args:
        svg (`str`): Drawings of `figures`.

    Returns:
        `Markup`: The same text.
    """
    from markupsafe import Markup

    return Markup(svg)
