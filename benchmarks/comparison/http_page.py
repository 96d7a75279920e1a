"""The section of docs/performance.md on servers, put into http_page.md."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import busy_neighbour
import http_overhead

from comparison import http_plan, http_rows, page


def section(http: dict[str, Any], overhead: dict[str, Any], neighbour: dict[str, Any]) -> str:
    """From what `compare.py --http`, http_overhead.py and busy_neighbour.py wrote."""
    template = string.Template(Path(__file__).with_name("http_page.md").read_text())
    return template.substitute(
        machine=page.machine_text(http),
        table=page.rows_table(http["rows"]),
        figures="\n\n".join(_figures(http["record"])),
        overhead_machine=f"{overhead['machine']['cpu']}, {overhead['machine']['threads']} threads.",
        overhead=page.table(*_split(http_overhead.rows(overhead))),
        neighbour_machine=f"{neighbour['cpu']}.",
        neighbour=page.table(*_split(busy_neighbour.rows(neighbour))),
    ).strip()


def _figures(record: dict[str, Any]) -> list[str]:
    """A table for each workload that was run."""
    tables = []
    for name in http_plan.WORKLOADS:
        workload = name.removeprefix("http-").upper()
        if lines := http_rows.figures(record, workload):
            tables.append(page.table((workload, *http_rows.FIGURES[1:]), lines))
    return tables


def _split(table: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return table[0], table[1:]
