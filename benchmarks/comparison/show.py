"""The table as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comparison.rows import Row
from comparison.spread import Spread, digits

HEADER = ("", "against", "", "ours", "beside", "", "wanted", "verdict", "CPU s", "others")


def cells(row: Row) -> tuple[str, ...]:
    """A row's texts, in the order of HEADER."""
    ours, theirs = (Spread.of(values).show() if values else "" for values in (row.ours, row.theirs))
    value = Spread.of(row.values).show(row.suffix) if row.values else ""
    wanted = "" if row.target is None else row.target.show(row.suffix)
    cpu = " / ".join("-" if seconds is None else digits(seconds) for seconds in row.cpu)
    others = f"{row.others:.2f}" if row.ours else ""
    return (
        row.title, row.against, row.unit, ours, theirs, value, wanted, row.verdict,
        "" if row.cpu == (None, None) else cpu, others,
    )  # fmt: skip


def text(rows: Sequence[Row]) -> str:
    """Columns of one width each; notes stand under their rows."""
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [
        max(len(line[i]) for line in lines if i != VERDICT or len(line[i]) < 30) for i in range(len(HEADER))
    ]
    shown = []
    for line, row in zip(lines, (None, *rows), strict=True):
        shown.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if row is not None and row.note:
            shown.append(f"    {row.note}")
    return "\n".join(shown)


VERDICT = HEADER.index("verdict")


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Lines of cells, in columns of one width each."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def footer(report: dict[str, Any]) -> str:
    """Under the table: the machine, its floors, who else was on it, and the versions."""
    lines = []
    for block, floors in report["record"]["floors"].items():
        bandwidth = Spread.of([f["bandwidth"] / 1e9 for f in floors]).show(" GB/s")
        peak = Spread.of([f["int8_peak"] / 1e9 for f in floors]).show(" GOP/s")
        lines.append(f"floors, {block}: reads {bandwidth}, int8 {peak} ({floors[0]['instruction']})")
    load, machine = report["load"], report["machine"]
    lines.append(
        f"load average {load['before']:.2f} before, {load['after']:.2f} after; {machine['threads']} threads"
    )
    samples = report["record"]["samples"]
    if samples:
        others = max(samples, key=lambda sample: sample["others"])
        lines.append(
            f"other processes kept at most {others['others']:.2f} CPUs busy ({others['side']}, "
            f"{others['workload']}), the host took at most {max(s['stolen'] for s in samples):.2f}"
        )
    lines.append("; ".join(f"{name} {version}" for name, version in report["versions"].items()))
    return "\n".join(lines)
