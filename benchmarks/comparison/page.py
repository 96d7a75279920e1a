"""docs/performance.md: the figures in tables, put into page.md."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from comparison import show
from comparison.rows import Row
from comparison.spread import Spread, digits

SLOTS = (
    ("stored", "stored"), ("of it duplicates", "duplicates"), ("to be written", "reservation"),
    ("internal", "internal"), ("external", "external"), ("cached", "cached"), ("free", "free"),
)  # fmt: skip
COLUMNS = ("", "against", "ours", "beside", "", "wanted", "verdict", "CPU s", "others")


def markdown(
    compare: dict[str, Any],
    growth: dict[str, Any],
    fragmentation: dict[str, Any],
    quality: dict[str, Any],
    http: str,
) -> str:
    """The page, from what compare.py, growth.py, fragmentation.py and quality.py wrote.

    Args:
        http: the section that `http_page.section` wrote.
    """
    template = string.Template(Path(__file__).with_name("page.md").read_text())
    return template.substitute(
        machine=machine_text(compare),
        table=rows_table(compare["rows"]),
        http=http,
        floors=_floors(compare),
        decode_machine=_measured(growth["decode"]),
        decode=_decode(growth["decode"]["cells"]),
        sharing_machine=_measured(growth["sharing"]),
        sharing=_sharing(growth["sharing"]["cells"]),
        scheduler_machine=_measured(growth["scheduler"]),
        scheduler_context=growth["scheduler"]["context"],
        scheduler=_scheduler(growth["scheduler"]["cells"]),
        served=f"{fragmentation['requests']:,}",
        over_time=_over_time(fragmentation["over_time"]),
        events=_events(fragmentation["events"]),
        end_of_request=_end_of_request(fragmentation["end_of_request"]),
        quality="\n\n".join(_quality(name, model) for name, model in quality["models"].items()),
    )


def rows_table(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of compare.py."""
    return table(COLUMNS, map(_row, rows))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine_text(compare: dict[str, Any]) -> str:
    """When, on what and with which versions a report of compare.py was measured."""
    machine, load = compare["machine"], compare["load"]
    versions = ", ".join(f"{name} {version}" for name, version in compare["versions"].items())
    memory = machine["memory_bytes"] / 2**30
    return (
        f"{compare['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {memory:.0f} GB. "
        f"{machine['threads']} threads, kernels {machine['kernels']}, {compare['repetitions']} repetitions. "
        f"Load average {load['before']:.2f} before and {load['after']:.2f} after. {versions}."
        + "".join(f" {_again(again)}" for again in compare.get("again", []))
    )


def _again(again: dict[str, Any]) -> str:
    """Which rows are of a later run than the others."""
    load = again["load"]
    return (
        f"Of a later run, at {again['date'][11:16]} UTC (load {load['before']:.2f}): "
        f"{', '.join(again['groups'])}."
    )


def _row(row: dict[str, Any]) -> Sequence[str]:
    """The cells of `show`, with units and notes where they belong in a page."""
    title, against, unit, _, _, value, *rest = show.cells(Row.from_dict(row))
    title += f"<br>{row['note']}" if row["note"] else ""
    ours, theirs = (_spread(row[side], f" {unit}") for side in ("ours", "theirs"))
    return (title, against, ours, theirs, f"**{value}**" if value else "", *rest)


def _spread(values: list[float], suffix: str = "") -> str:
    return Spread.of(values).show(suffix) if values else ""


def _floors(compare: dict[str, Any]) -> str:
    found = dict(compare["record"]["floors"])
    around = [floors for sample in compare["record"]["samples"] for floors in sample["floors"]]
    if around:
        found["right before and after runs of ours"] = around
    rows = []
    for block, floors in found.items():
        bandwidth, peak = ([f[name] / 1e9 for f in floors] for name in ("bandwidth", "int8_peak"))
        rows.append((block, _spread(bandwidth), _spread(peak), floors[0]["instruction"]))
    return table(("", "reads, GB/s", "int8, GOP/s", "instruction"), rows)


def _measured(part: dict[str, Any]) -> str:
    """When and on what a part of growth.py was measured."""
    measured = part["measured"]
    machine = measured["machine"]
    floors = Spread.of([floor["bandwidth"] / 1e9 for floor in measured["floors"]])
    return (
        f"SmolLM2 135M Q4_1, {measured['date'][:10]}, {machine['cpu']}, {machine['threads']} threads, "
        f"reads {floors.show(' GB/s')}."
    )


def _sharing(cells: list[dict[str, Any]]) -> str:
    """A line for each shape of batch, a column for each share of the context that is common."""
    shapes: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        shapes.setdefault(cell["name"], []).append(cell)
    rows = []
    for name, found in shapes.items():
        first, last = found[0], found[-1]
        rows.append(
            [
                name,
                f"{first['batch']} of {first['context']:,}",
                *(f"{digits(1e3 * cell['seconds'])} ({cell['common']:,})" for cell in found),
                f"{digits(first['seconds'] / last['seconds'])}x",
            ]
        )
    columns = [f"ms ({cell['share']:.0%} common)" for cell in found]
    return table(["", "sequences, tokens", *columns, "gain"], rows)


def _decode(cells: list[dict[str, Any]]) -> str:
    seconds = {(cell["batch"], cell["context"]): cell["seconds"] for cell in cells}
    batches, contexts = (sorted({key[i] for key in seconds}) for i in (0, 1))

    def shown(value: float | None) -> str:
        return "-" if value is None else digits(1e3 * value)

    rows = [[f"{context:,}", *(shown(seconds[batch, context]) for batch in batches)] for context in contexts]
    grid = table(["context", *(f"batch {batch}" for batch in batches)], rows)
    if None in seconds.values():
        grid += "\n\nA dash: the K/V would not have fitted into memory."
    return grid


def _scheduler(cells: list[dict[str, Any]]) -> str:
    rows = []
    for cell in cells:
        both = cell["schedule"] + cell["update"]
        values = (cell["schedule"], cell["update"], both, both / cell["sequences"])
        rows.append([f"{cell['sequences']:,}", *(digits(1e6 * value) for value in values)])
    return table(("running sequences", "schedule", "update", "both", "per sequence"), rows)


def _over_time(found: list[dict[str, Any]]) -> str:
    header = ("", "", *(kind for kind, _ in SLOTS), "mean batch", "preempted", "seconds")
    rows = []
    for row in found:
        shares = (f"{row['shares'][kind]:.1%}" for _, kind in SLOTS)
        end = (f"{row['mean_batch']:.1f}", f"{row['preemptions']:,}", f"{row['seconds']:.0f}")
        rows.append((row["workload"], row["system"], *shares, *end))
    return table(header, rows)


def _end_of_request(found: list[dict[str, Any]]) -> str:
    rows = []
    for row in found:
        used = [100 * value for value in row["utilisation"]]
        rows.append((row["system"], Spread.of(used).show(" %"), Spread.of(row["unused_slots"]).show()))
    return table(("", "used", "unused slots"), rows)


def _events(found: list[dict[str, Any]]) -> str:
    rows = []
    for row in found:
        runs = row["runs"]
        shares = [100 * run["enough_free"] / run["failures"] for run in runs if run["failures"]]
        rows.append(
            (
                f"{row['mean']:,}",
                row["system"],
                Spread.of([run["failures"] for run in runs]).show(),
                _spread(shares, " %"),
                Spread.of([100 * run["used"] for run in runs]).show(" %"),
            )
        )
    return table(("mean size", "", "failures", "with enough free", "mean use"), rows)


def _quality(name: str, model: dict[str, Any]) -> str:
    """One model's sides against float32; llama.cpp scores the second half of each window, so ours do too."""

    def cells(side: str, f: dict[str, float]) -> list[str]:
        change = f"{f['ratio'] - 1:+.2%} ± {f['ratio_error']:.2%}"
        divergence = (f"{f['kl_mean']:.5f}", f"{f['kl_p999']:.4f}")
        return [side, f"{f['perplexity']:.3f}", change, f"{f['top1']:.2%}", *divergence]

    header = ("", "perplexity", "to float32", "top-1", "KL mean", "KL P99.9")
    first = next(iter(model["leafage"].values()))
    positions, exact = first["positions"], first["reference_perplexity"]
    parts = [
        f"**{name}**, {model['windows']} windows of {model['window']:,} tokens, {positions:,} positions; "
        f"float32: {exact:.3f}",
        table(header, (cells(side, f) for side, f in model["leafage"].items())),
    ]
    if theirs := model.get("llamacpp"):
        rows = [cells(side, f) for side, f in model["second_half"].items()]
        parts += [
            f"{name} beside llama.cpp's default settings, which stand against its own float32, "
            f"{theirs['positions']:,} positions:",
            table(header, [*rows, cells("llama.cpp", theirs)]),
        ]
    return "\n\n".join(parts)
