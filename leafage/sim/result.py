"""What a simulation gave: times of requests, use of the KV cache, counters."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leafage.core.counters import KVCounters, SchedulerCounters
from leafage.core.request import FinishKind, Request
from leafage.core.swap import SwapCounters
from leafage.core.usage import KINDS, UsageSeconds
from leafage.engine.metrics import RequestMetrics
from leafage.errors import LeafageError
from leafage.sim.timeline import Timeline

Floats = NDArray[np.float64]
_Counters = TypeVar("_Counters", SchedulerCounters, KVCounters, SwapCounters)


@dataclass(frozen=True, slots=True)
class SLO:
    """A service level: a request attains it when both of its latencies stay below.

    Attributes:
        ttft: seconds from arrival to the first token.
        tpot: mean seconds per output token after the first.
    """

    ttft: float
    tpot: float


@dataclass(slots=True)
class Refusals:
    """Requests that were refused for one reason: how many, and what was said to the first."""

    count: int
    first: str


class Records:
    """Times of finished requests, in columns: a few numbers each, whatever their lengths.

    Attributes:
        arrival, first_token, last_token: seconds.
        prompt_tokens, output_tokens: counts; output of all sequences.
        cached_tokens: prompt tokens found in the cache.
        preemptions: how often each was preempted.
        passed: how often a later one of its class was admitted while it waited.
        num_refused: requests that could never run.
        num_failed: requests that ended with an error.
        refusals: those requests by reason.
    """

    def __init__(self) -> None:
        self.arrival = array("d")
        self.scheduled = array("d")
        self.first_token = array("d")
        self.last_token = array("d")
        self.prompt_tokens = array("l")
        self.output_tokens = array("l")
        self.cached_tokens = array("l")
        self.num_sequences = array("l")
        self.preemptions = array("l")
        self.passed = array("l")
        self.num_refused = 0
        self.num_failed = 0
        self.refusals: dict[str, Refusals] = {}

    @property
    def num_requests(self) -> int:
        return len(self.arrival)

    def refuse(self, error: LeafageError) -> None:
        """A request was refused with this error."""
        self.num_refused += 1
        self.refusals.setdefault(error.what, Refusals(0, str(error))).count += 1

    def add(self, request: Request, metrics: RequestMetrics) -> bool:
        """A request has ended. Returns whether it was answered."""
        finish = request.sequences[0].finish
        assert finish is not None
        if finish.kind is FinishKind.ERROR or metrics.first_token_time is None:
            self.num_failed += 1
            return False
        self.arrival.append(metrics.arrival_time)
        self.scheduled.append(metrics.first_scheduled_time or metrics.arrival_time)
        self.first_token.append(metrics.first_token_time)
        self.last_token.append(metrics.last_token_time or metrics.first_token_time)
        self.prompt_tokens.append(len(request.prompt_token_ids))
        self.output_tokens.append(metrics.num_generation_tokens)
        self.cached_tokens.append(request.num_cached or 0)
        self.num_sequences.append(len(request.sequences))
        self.preemptions.append(request.num_preemptions)
        self.passed.append(request.passed)
        return True

    def attained(self, index: int, slo: SLO) -> bool:
        """Whether one request met the service level; what `SimResult.attainment` says of all."""
        ttft = self.first_token[index] - self.arrival[index]
        each = self.output_tokens[index] / self.num_sequences[index]
        tpot = (self.last_token[index] - self.first_token[index]) / max(each - 1, 1)
        return ttft <= slo.ttft and tpot <= slo.tpot

    def extend(self, others: Records) -> None:
        """Requests of another engine that served the same workload."""
        for name in (*_COLUMNS, "num_refused", "num_failed"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        for reason, refusals in others.refusals.items():
            self.refusals.setdefault(reason, Refusals(0, refusals.first)).count += refusals.count


_COLUMNS = (
    "arrival",
    "scheduled",
    "first_token",
    "last_token",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "num_sequences",
    "preemptions",
    "passed",
)


@dataclass(slots=True)
class SimResult:
    """One simulated run.

    Attributes:
        records: its finished requests.
        seconds: simulated time until the last of them.
        usage: slot-seconds of the KV cache by kind, and sequence-seconds.
        counters, kv_counters: of the scheduler and of the KV manager.
        num_slots: of the KV cache.
        block_size: slots in a block.
        swap_counters: of the swap space.
        timeline: the same over time.
    """

    records: Records
    seconds: float
    usage: UsageSeconds
    counters: SchedulerCounters
    kv_counters: KVCounters
    num_slots: int
    block_size: int
    swap_counters: SwapCounters
    timeline: Timeline

    @property
    def ttft(self) -> Floats:
        """Seconds from arrival to first token, of each request in the order they ended."""
        return _column(self.records.first_token) - _column(self.records.arrival)

    @property
    def tpot(self) -> Floats:
        """Mean seconds per output token after the first, of each; 0 where there was one token."""
        span = _column(self.records.last_token) - _column(self.records.first_token)
        each = _column(self.records.output_tokens) / _column(self.records.num_sequences)
        latency: Floats = span / np.maximum(each - 1, 1)
        return latency

    @property
    def e2e(self) -> Floats:
        """Seconds from arrival to last token, of each."""
        return _column(self.records.last_token) - _column(self.records.arrival)

    @property
    def normalized_latency(self) -> float:
        """Mean of end-to-end seconds per output token (Kwon et al., SOSP 2023, section 6.1)."""
        return float(np.mean(self.e2e / _column(self.records.output_tokens)))

    @property
    def wait(self) -> Floats:
        """Seconds from arrival to the first step that computed a part of it, of each."""
        return _column(self.records.scheduled) - _column(self.records.arrival)

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return sum(self.records.output_tokens) / self.seconds if self.seconds else 0.0

    @property
    def mean_batch(self) -> float:
        """Running sequences, weighted by time."""
        return self.usage.seq_seconds / self.usage.seconds if self.usage.seconds else 0.0

    def share(self, kind: str) -> float:
        """Of the KV cache's slots, weighted by the time of steps: a kind of `core.usage.Usage`."""
        seconds = self.usage.slot_seconds[KINDS.index(kind)]
        return seconds / (self.usage.seconds * self.num_slots) if self.usage.seconds else 0.0

    @property
    def occupancy(self) -> float:
        """Share of the KV cache that running requests keep from others, weighted by time."""
        return self.share("stored") + self.share("reservation") + self.share("internal")

    def attainment(self, slo: SLO) -> float:
        """Share of the requests that met the service level; refused and failed ones did not."""
        met = int(np.sum((self.ttft <= slo.ttft) & (self.tpot <= slo.tpot)))
        return met / max(1, self.records.num_requests + self.records.num_refused + self.records.num_failed)


def merged(results: Sequence[SimResult]) -> SimResult:
    """Several engines that served one workload together, as one result: requests of all, shares weighted by
    time, the batch of one engine on average, and the timeline of the first."""
    first, *others = results
    if not others:
        return first
    records, usage = Records(), UsageSeconds()
    for result in results:
        records.extend(result.records)
        usage.seconds += result.usage.seconds
        usage.seq_seconds += result.usage.seq_seconds
        usage.slot_seconds = [
            a + b for a, b in zip(usage.slot_seconds, result.usage.slot_seconds, strict=True)
        ]
    return SimResult(
        records=records,
        seconds=max(result.seconds for result in results),
        usage=usage,
        counters=_summed([result.counters for result in results]),
        kv_counters=_summed([result.kv_counters for result in results]),
        num_slots=first.num_slots,
        block_size=first.block_size,
        swap_counters=_summed([result.swap_counters for result in results]),
        timeline=first.timeline,
    )


def _summed(counters: Sequence[_Counters]) -> _Counters:
    """Field by field."""
    total = type(counters[0])()
    for each in counters:
        for field in fields(each):
            setattr(total, field.name, getattr(total, field.name) + getattr(each, field.name))
    return total


def _column(values: array[float] | array[int]) -> Floats:
    return np.array(values, dtype=np.float64)
