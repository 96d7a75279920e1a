"""What a simulation is judged by: one name, unit and meaning for each number, in tables, JSON, sweeps and
searches alike."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from leafage.errors import InvalidParameterError
from leafage.sim.result import SLO, Floats, SimResult

DEFAULT_SLO = SLO(ttft=2.0, tpot=0.1)
"""The first token within 2 s, and 10 tokens a second from then on: as fast as people read."""

Unit = Literal["s", "tok/s", "req/s", "share", "tokens", "requests", "sequences", "times", "blocks"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a run.

    Attributes:
        name: what commands and JSON call it.
        title: what tables and plots call it.
        unit: of the value. Shares go from 0 to 1, latencies are in seconds.
        better: where improvement lies; None where neither way is better.
        help: one line.
        of: computes it from a run and a service level.
    """

    name: str
    title: str
    unit: Unit
    better: Literal["higher", "lower"] | None
    help: str
    of: Callable[[SimResult, SLO], float]

    def show(self, value: float) -> str:
        """The value with its unit, as people read it."""
        if math.isnan(value):
            return "-"
        if self.unit == "share":
            return f"{100 * value:.1f} %"
        if self.unit == "s":
            return show_seconds(value)
        digits = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
        return digits if self.unit in ("times", "sequences", "requests") else f"{digits} {self.unit}"


def show_seconds(value: float) -> str:
    """'89.4 ms', '2.46 s', '243.7 s'."""
    if math.isnan(value) or math.isinf(value):
        return "-"
    if value < 1:
        return f"{1e3 * value:.3g} ms" if value else "0 s"
    return f"{value:,.1f} s" if value >= 100 else f"{value:.3g} s"


def summarize(result: SimResult, slo: SLO = DEFAULT_SLO) -> dict[str, float]:
    """All metrics of a run, by name. NaN where there is nothing to tell, such as latencies of no requests."""
    return {name: metric.of(result, slo) for name, metric in METRICS.items()}


def find_metric(name: str) -> Metric:
    """A metric by its name; dashes count as underscores.

    Raises:
        InvalidParameterError: there is none; the nearest is named.
    """
    wanted = name.strip().replace("-", "_")
    if wanted in METRICS:
        return METRICS[wanted]
    close = difflib.get_close_matches(wanted, METRICS, n=1)
    raise InvalidParameterError(
        "unknown metric",
        value=name,
        limit=", ".join(METRICS),
        remedy=f"did you mean {close[0]}?" if close else None,
    )


def _percentile(values: Callable[[SimResult], Floats], share: float, result: SimResult, slo: SLO) -> float:
    of = values(result)
    return float(np.percentile(of, share)) if len(of) else math.nan


def _mean(values: Callable[[SimResult], Floats], result: SimResult, slo: SLO) -> float:
    of = values(result)
    return float(np.mean(of)) if len(of) else math.nan


def _share(kind: str, result: SimResult, slo: SLO) -> float:
    return result.share(kind)


def _count(name: str, result: SimResult, slo: SLO) -> float:
    return float(getattr(result.counters, name))


def _latencies() -> Iterable[Metric]:
    for name, title, what, values in (
        ("ttft", "TTFT", "seconds from arrival to the first token", lambda run: run.ttft),
        ("tpot", "TPOT", "seconds per output token after the first", lambda run: run.tpot),
        ("e2e", "E2E", "seconds from arrival to the last token", lambda run: run.e2e),
    ):
        yield Metric(f"{name}_mean", f"{title} mean", "s", "lower", f"{what}: mean", partial(_mean, values))
        for share in (50, 90, 99):
            help = f"{what}: the value that {share} % of the requests stay below"
            of = partial(_percentile, values, share)
            yield Metric(f"{name}_p{share}", f"{title} P{share}", "s", "lower", help, of)


def _wastes() -> Iterable[Metric]:
    for name, kind, title, what in (
        ("waste_reservation", "reservation", "waste: reservation", "held for tokens that are still to come"),
        ("waste_internal", "internal", "waste: internal", "held, and no request will ever write them"),
        (
            "waste_external",
            "external",
            "waste: external",
            "free, but outside the longest free run, where a request needs one run",
        ),
        ("waste_duplicates", "duplicates", "waste: duplicates", "written with what other slots hold as well"),
    ):
        help = f"share of the KV cache's slots that are {what}; time-weighted"
        yield Metric(name, title, "share", "lower", help, partial(_share, kind))


def _counts() -> Iterable[Metric]:
    for name, title, unit, help in (
        ("preemptions", "preemptions", "times", "how often a running request lost its KV cache"),
        ("recomputed_tokens", "recomputed", "tokens", "tokens computed again after a preemption"),
        ("swap_outs", "swap-outs", "times", "preempted requests whose KV cache was moved to the host"),
    ):
        yield Metric(name, title, unit, "lower", help, partial(_count, name))  # type: ignore[arg-type]


def _swapped(run: SimResult, slo: SLO) -> float:
    moved = run.swap_counters.blocks_out + run.swap_counters.blocks_in
    return float(moved * run.block_size)


def _hit_rate(run: SimResult, slo: SLO) -> float:
    queries = run.counters.prefix_queries
    return run.counters.prefix_hits / queries if queries else 0.0


def _per_second(run: SimResult, amount: float) -> float:
    return amount / run.seconds if run.seconds else 0.0


def _good(run: SimResult, slo: SLO) -> float:
    return _per_second(run, float(np.sum((run.ttft <= slo.ttft) & (run.tpot <= slo.tpot))))


def _longest(values: Callable[[SimResult], Floats], run: SimResult) -> float:
    of = values(run)
    return float(np.max(of)) if len(of) else math.nan


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *_latencies(),
        Metric(
            "normalized_latency",
            "normalized latency",
            "s",
            "lower",
            "mean over requests of end-to-end seconds per output token",
            lambda run, slo: run.normalized_latency if run.records.num_requests else math.nan,
        ),
        Metric(
            "slo_attainment",
            "SLO attainment",
            "share",
            "higher",
            "share of all requests whose TTFT and TPOT both stayed within the service level",
            lambda run, slo: run.attainment(slo),
        ),
        Metric(
            "throughput",
            "throughput",
            "tok/s",
            "higher",
            "output tokens a second, from the start to the last answer",
            lambda run, slo: run.throughput,
        ),
        Metric(
            "total_throughput",
            "with prompt tokens",
            "tok/s",
            "higher",
            "prompt and output tokens a second; cached ones count",
            lambda run, slo: run.throughput + _per_second(run, sum(run.records.prompt_tokens)),
        ),
        Metric(
            "request_throughput",
            "answers",
            "req/s",
            "higher",
            "requests answered a second",
            lambda run, slo: _per_second(run, run.records.num_requests),
        ),
        Metric(
            "good_throughput",
            "answers within the SLO",
            "req/s",
            "higher",
            "requests answered within the service level a second",
            _good,
        ),
        Metric(
            "mean_batch",
            "mean batch",
            "sequences",
            None,
            "running sequences, time-weighted over steps",
            lambda run, slo: run.mean_batch,
        ),
        Metric(
            "occupancy",
            "occupancy",
            "share",
            None,
            "share of the KV cache's slots that running requests keep from others; time-weighted",
            lambda run, slo: run.occupancy,
        ),
        Metric(
            "stored",
            "stored",
            "share",
            "higher",
            "share of the KV cache's slots written for running requests, shared ones once; time-weighted",
            partial(_share, "stored"),
        ),
        *_wastes(),
        Metric(
            "cached",
            "cached",
            "share",
            None,
            "share of the KV cache's slots that only the prefix index keeps; time-weighted",
            partial(_share, "cached"),
        ),
        Metric(
            "hit_rate",
            "prefix hit rate",
            "share",
            "higher",
            "share of the prompt tokens that were found in the cache",
            _hit_rate,
        ),
        *_counts(),
        Metric(
            "swapped_tokens",
            "swapped",
            "tokens",
            "lower",
            "slots moved between the device and the host, both ways",
            _swapped,
        ),
        Metric(
            "evicted_blocks",
            "evicted",
            "blocks",
            "lower",
            "cached blocks that were given up for others",
            lambda run, slo: float(run.kv_counters.evicted_blocks),
        ),
        Metric(
            "longest_wait",
            "longest wait",
            "s",
            "lower",
            "longest time from arrival to the first step that computed a part of a request",
            lambda run, slo: _longest(lambda result: result.wait, run),
        ),
        Metric(
            "most_passed",
            "most passed",
            "times",
            "lower",
            "how often one waiting request was passed by later ones of its class at most",
            lambda run, slo: float(max(run.records.passed, default=0)),
        ),
        Metric(
            "num_requests",
            "answered",
            "requests",
            None,
            "requests that were answered",
            lambda run, slo: float(run.records.num_requests),
        ),
        Metric(
            "num_refused",
            "refused",
            "requests",
            "lower",
            "requests that could never run",
            lambda run, slo: float(run.records.num_refused),
        ),
        Metric(
            "num_failed",
            "failed",
            "requests",
            "lower",
            "requests that ended with an error",
            lambda run, slo: float(run.records.num_failed),
        ),
        Metric(
            "seconds",
            "simulated time",
            "s",
            None,
            "simulated seconds until the last answer",
            lambda run, slo: run.seconds,
        ),
        Metric("steps", "steps", "times", None, "steps of the engine", partial(_count, "steps")),
    )
}
"""Every metric by name, in the order of tables."""
