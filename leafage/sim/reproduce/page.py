"""Reports as JSON, as Markdown and as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from leafage.sim.reproduce.demo import Check, Column, Source, Table
from leafage.sim.reproduce.runner import Report

TITLE = "Reproduction"
INTRODUCTION = (
    "Made by `leafage sim reproduce`: every table and demo of the lecture behind this project, computed "
    "again by the engine's own scheduler and memory. Columns say where their numbers come from: **ours** is "
    "measured here, **lecture** is what the lecture says, and **paper** is paper reported and not measurable "
    "here. EXACT: the number follows from constants or from counting. BAND: it depends on a seed that is not "
    "known and must lie in the band. SHAPE: direction and size only."
)
_MARK = {True: "passed", False: "**FAILED**"}


def as_dict(reports: Sequence[Report]) -> dict[str, Any]:
    """Everything, with numbers as they are."""
    return {
        "verdicts": verdicts(reports),
        "demos": [
            {
                "id": report.demo.id,
                "covers": list(report.demo.covers),
                "title": report.demo.title,
                "verdict": report.verdict,
                "pending": report.demo.pending,
                "error": report.error,
                "seconds": report.seconds,
                "tables": [_table_dict(table) for table in _tables(report)],
                "checks": [
                    {
                        "text": check.text,
                        "value": check.value,
                        "wanted": check.wanted,
                        "kind": check.kind.value,
                        "passed": check.passed,
                    }
                    for check in _checks(report)
                ],
                "notes": list(report.outcome.notes) if report.outcome else [],
            }
            for report in reports
        ],
    }


def verdicts(reports: Sequence[Report]) -> dict[str, int]:
    """How many demos got each verdict."""
    names = ("passed", "failed", "error", "quoted", "pending")
    return {name: sum(report.verdict == name for report in reports) for name in names}


def summary(reports: Sequence[Report]) -> str:
    """One line."""
    checks = [check for report in reports for check in _checks(report)]
    counts = verdicts(reports)
    words = [f"{counts[name]} {name}" for name in counts if counts[name] or name == "passed"]
    passed = sum(check.passed for check in checks)
    demos = "demo" if len(reports) == 1 else "demos"
    return f"{len(reports)} {demos}: {', '.join(words)}; {passed} of {len(checks)} checks passed"


def markdown(reports: Sequence[Report]) -> str:
    """The page `docs/reproduction.md`; but for the times of kernels, nothing in it depends on the machine."""
    lines = [f"# {TITLE}", "", INTRODUCTION, "", summary(reports) + ".", ""]
    lines += ["| demo | covers | verdict |", "|---|---|---|"]
    for report in reports:
        demo = report.demo
        anchor = f"[{demo.title}](#{demo.id})" if report.verdict != "pending" else demo.title
        lines.append(f"| {anchor} | {', '.join(demo.covers)} | {report.verdict} |")
    for report in reports:
        lines += ["", f'<a id="{report.demo.id}"></a>', "", f"## {report.demo.title}"]
        lines += _body(report)
    return "\n".join(lines) + "\n"


def _body(report: Report) -> list[str]:
    if report.demo.pending is not None:
        return ["", f"Pending: {report.demo.pending}."]
    if report.error is not None:
        return ["", f"It failed to run: `{report.error.strip().splitlines()[-1]}`"]
    lines = []
    for table in _tables(report):
        lines += ["", f"**{table.title}**", "", *_markdown_table(table)]
    if checks := _checks(report):
        lines += ["", "| check | ours | wanted | kind | verdict |", "|---|---|---|---|---|"]
        lines += [
            f"| {_pipe(c.text)} | {_pipe(c.value)} | {_pipe(c.wanted)} | {c.kind.value} | {_MARK[c.passed]} |"
            for c in checks
        ]
    for note in report.outcome.notes if report.outcome else ():
        lines += ["", note]
    return lines


def _markdown_table(table: Table) -> list[str]:
    heads = [_pipe(heading(column)) for column in table.columns]
    rows = [[_pipe(c.show(cell)) for c, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join("---" if table.is_text(i) else "--:" for i in range(len(heads))) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def heading(column: Column) -> str:
    """A column's name, and in a word the source of its numbers where the name does not say it."""
    if column.source is Source.NONE or column.name == column.source.value:
        return column.name
    return f"{column.name} ({column.source.name.lower()})"


def html(reports: Sequence[Report]) -> str:
    """One page without anything outside of it."""
    parts = [
        _HEAD,
        f"<h1>{TITLE}</h1>",
        f"<p>{_inline(INTRODUCTION)}</p>",
        f"<p>{escape(summary(reports))}.</p>",
    ]
    parts += ["<table>", _html_row("th", [(name, "") for name in ("demo", "covers", "verdict")])]
    for report in reports:
        demo = report.demo
        cells = [(f'<a href="#{demo.id}">{escape(demo.title)}</a>', ""), (escape(", ".join(demo.covers)), "")]
        parts.append(_html_row("td", [*cells, (report.verdict, report.verdict)]))
    parts.append("</table>")
    for report in reports:
        parts += [f'<h2 id="{report.demo.id}">{escape(report.demo.title)}</h2>', *_html_body(report)]
    return "\n".join(parts) + "\n</body></html>\n"


def _html_body(report: Report) -> list[str]:
    if report.demo.pending is not None:
        return [f'<p class="pending">Pending: {escape(report.demo.pending)}.</p>']
    if report.error is not None:
        return [f'<pre class="error">{escape(report.error)}</pre>']
    parts = []
    for table in _tables(report):
        parts.append(f"<table><caption>{escape(table.title)}</caption>")
        css = [f"{_css(c)} text" if table.is_text(i) else _css(c) for i, c in enumerate(table.columns)]
        heads = [escape(heading(column)) for column in table.columns]
        parts.append(_html_row("th", list(zip(heads, css, strict=True))))
        for row in table.rows:
            shown = [escape(c.show(cell)) for c, cell in zip(table.columns, row, strict=True)]
            parts.append(_html_row("td", list(zip(shown, css, strict=True))))
        parts.append("</table>")
        parts += _bars(table)
    if checks := _checks(report):
        parts.append(
            "<table><tr><th>check</th><th>ours</th><th>wanted</th><th>kind</th><th>verdict</th></tr>"
        )
        for c in checks:
            verdict = "passed" if c.passed else "failed"
            cells = [(escape(text), "") for text in (c.text, c.value, c.wanted, c.kind.value)]
            parts.append(_html_row("td", [*cells, (verdict, verdict)]))
        parts.append("</table>")
    parts += [f"<p>{_inline(note)}</p>" for note in (report.outcome.notes if report.outcome else ())]
    return parts


def _html_row(tag: str, cells: Sequence[tuple[str, str]]) -> str:
    """Cells of (HTML, class)."""
    inner = "".join(f'<{tag} class="{css}">{content}</{tag}>' for content, css in cells)
    return f"<tr>{inner}</tr>"


def _bars(table: Table) -> list[str]:
    """The shares of each row side by side, and what the colours mean."""
    if not table.stacked:
        return []
    chosen = range(1, table.stacked + 1)
    colours = [f"hsl({(130 + 67 * i) % 360} 45% {62 if i else 45}%)" for i in range(table.stacked)]
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{escape(table.columns[i].name)}</span>'
        for i, colour in zip(chosen, colours, strict=True)
    )
    lines = [f'<div class="bars"><p>{legend}</p>']
    for row in table.rows:
        pieces = "".join(
            f'<i style="width:{row[i]:.2f}%;background:{colour}"></i>'
            for i, colour in zip(chosen, colours, strict=True)
        )
        lines.append(f"<p><b>{escape(str(row[0]))}</b><span>{pieces}</span></p>")
    return [*lines, "</div>"]


def _css(column: Column) -> str:
    return {Source.OURS: "ours", Source.LECTURE: "lecture", Source.PAPER: "paper", Source.NONE: ""}[
        column.source
    ]


def _inline(text: str) -> str:
    """The little Markdown that introductions and notes use: `code` and **bold**."""
    text = escape(text)
    for mark, tag in (("`", "code"), ("**", "b")):
        pieces = text.split(mark)
        text = "".join(f"<{tag}>{p}</{tag}>" if i % 2 else p for i, p in enumerate(pieces))
    return text


def _tables(report: Report) -> Sequence[Table]:
    return report.outcome.tables if report.outcome else ()


def _checks(report: Report) -> Sequence[Check]:
    return report.outcome.checks if report.outcome else ()


def _table_dict(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [{"name": c.name, "source": c.source.value} for c in table.columns],
        "rows": [list(row) for row in table.rows],
    }


def _pipe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Reproduction</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { border: 1px solid #d5dae0; padding: .25rem .6rem; text-align: right }
th:first-child, td:first-child, .text { text-align: left }
td:first-child { min-width: 8rem }
th { background: #f3f5f7; font-weight: 600 }
.ours { background: #eef6ee } .lecture { background: #f4f1fa } .paper { background: #fbf4e6 }
.bars p { display: flex; gap: .6rem; margin: .15rem 0; align-items: center; font-size: .9em }
.bars b { width: 10rem; font-weight: 400 } .bars b + span { display: flex; flex: 1; height: 1rem }
.bars p:first-child i { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem }
.passed { color: #156b2c } .failed, .error { color: #b3261e; font-weight: 600 } .pending { color: #6a5a00 }
</style></head><body>"""
