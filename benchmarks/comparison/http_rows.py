"""The rows of `compare.py --http`, and what each side's client saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comparison import http_plan, plan, show
from comparison.rows import Row, Table
from comparison.runs import Record, Sample
from comparison.sides import TITLES, Side
from comparison.spread import Spread, Target, ratios

TARGETS = {"W3": (5.0, 1.5), "W4": (10.0, 1.8), "W5": (4.0, 1.6)}
"""Of the wall time, and of W5's mean TTFT too: times as fast as llama.cpp's server and as vLLM's."""
FIGURES = ("", "wall", "output", "TTFT mean", "P50", "P99", "TPOT P50", "P99", "CPU s: server", "client")


class HTTPTable(Table):
    """Makes rows from a record of servers."""

    def rows(self, wanted: set[str]) -> list[Row]:
        found = []
        for name in http_plan.ROWS:
            if name in wanted:
                found += self._starts() if name == "http-start" else self._workload(name)
        return found

    def _workload(self, name: str) -> list[Row]:
        workload = name.removeprefix("http-").upper()
        targets = dict(
            zip((http_plan.LLAMACPP, http_plan.VLLM), TARGETS.get(workload, (None, None)), strict=True)
        )
        judged = [(f"{workload} over HTTP", _wall, "s")]
        if workload == "W5":
            judged.append(("W5 over HTTP, mean TTFT", _mean_ttft, "ms"))
        return [
            self._faster(name, workload, title, side, figure, unit, targets.get(side))
            for title, figure, unit in judged
            for side in (*http_plan.PEERS, plan.OPENVINO)
        ]

    def _faster(
        self,
        group: str,
        workload: str,
        title: str,
        theirs: Side,
        figure: Callable[[Sample, str], float],
        unit: str,
        target: float | None,
    ) -> Row:
        """Ratios of times; above 1, ours is shorter."""
        where = "" if theirs.http else ", in its process"
        row = Row(group, title, f"{TITLES[theirs.engine]} {theirs.form}{where}", unit)
        row.target = None if target is None else Target(target)
        if self._fill(row, http_plan.OURS, workload, theirs, workload, figure=figure, both_all=False):
            row.values = ratios(row.ours, row.theirs, more_is_better=False)
            row.problem = self._invalid(theirs, workload)
        return row

    def _starts(self) -> list[Row]:
        judged = (("start until ready", _wall), ("start until the first answer", _first_token))
        return [
            self._faster("http-start", "start", title, side, figure, "s", None)
            for title, figure in judged
            for side in (http_plan.LLAMACPP, http_plan.VLLM)
        ]


def _wall(sample: Sample, workload: str) -> float:
    return float(sample.answer["wall"])


def _mean_ttft(sample: Sample, workload: str) -> float:
    return 1e3 * float(sample.answer["mean_first_token"])


def _first_token(sample: Sample, workload: str) -> float:
    return float(sample.answer["first_token"])


def figures(record: dict[str, Any], workload: str) -> list[tuple[str, ...]]:
    """A line for each side of a workload, in the order of FIGURES: medians and ranges.

    Args:
        record: as `Record.as_dict` gives it.
    """
    lines = []
    for side in map(str, http_plan.SIDES):
        answers = [
            sample["answer"]
            for sample in record["samples"]
            if (sample["side"], sample["workload"]) == (side, workload)
        ]
        if answers:
            lines.append((side, *_figures(answers)))
    return lines


def _figures(answers: list[dict[str, Any]]) -> list[str]:
    def spread(value: Callable[[dict[str, Any]], float | None], suffix: str) -> str:
        values = [found for answer in answers if (found := value(answer)) is not None]
        return Spread.of(values).show(suffix) if values else "-"

    def milliseconds(name: str, share: str) -> Callable[[dict[str, Any]], float | None]:
        def value(answer: dict[str, Any]) -> float | None:
            seconds = answer.get("times", {}).get(name, {}).get(share)
            return None if seconds is None else 1e3 * seconds

        return value

    def mean_ttft(answer: dict[str, Any]) -> float | None:
        seconds = answer.get("mean_first_token")
        return None if seconds is None else 1e3 * seconds

    return [
        spread(lambda answer: answer["wall"], " s"),
        spread(lambda answer: answer["num_output_tokens"] / answer["wall"], " tok/s"),
        spread(mean_ttft, " ms"),
        *(spread(milliseconds(name, share), " ms") for name in ("ttft", "tpot") for share in ("p50", "p99")),
        spread(lambda answer: answer["cpu"], ""),
        spread(lambda answer: answer.get("client_cpu"), ""),
    ]


def text(record: Record) -> str:
    """The figures of all workloads, as a table of text for each."""
    plain, parts = record.as_dict(), []
    for name in http_plan.WORKLOADS:
        workload = name.removeprefix("http-").upper()
        if lines := figures(plain, workload):
            parts.append(show.aligned([(workload, *FIGURES[1:]), *lines]))
    return "\n\n".join(parts)
