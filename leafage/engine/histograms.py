"""Histograms of an engine that serves: how long requests took, and how much each step did."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leafage.core.request import Request

if TYPE_CHECKING:
    from leafage.engine.metrics import RequestMetrics

# Upper bounds in seconds and tokens: vLLM's, so that its dashboards and alerts find theirs, and smaller ones
# before them for models that answer faster than its first bucket, or larger ones behind.
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
BLOCK_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
    600.0, 1200.0, 1800.0, 3600.0, 21600.0, 86400.0,
)  # fmt: skip
REQUEST_TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values by upper bound, and their sum. All of it only grows.

    Attributes:
        bounds: ascending; a value belongs to the first bound that is not below it.
        counts: one more than bounds: the last is of values above all of them.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value; one below 0 counts as 0."""
        value = max(value, 0.0)
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def copy(self) -> Histogram:
        """One that stays as it is."""
        twin = Histogram(self.bounds)
        twin.counts, twin.sum = self.counts[:], self.sum
        return twin


def _block_seconds() -> Histogram:
    return Histogram(BLOCK_SECONDS)


def _seconds() -> Histogram:
    return Histogram(REQUEST_SECONDS)


@dataclass(slots=True)
class Histograms:
    """What `EngineMetrics` fills in while it watches an engine.

    Requests are counted in their first token (TTFT), and at the end when they were answered; those that were
    aborted or failed are not. A request with several sequences counts as one.

    Attributes:
        inter_token_latency: time between the steps in which a request drew tokens.
        queue_time: from arrival to the first step that computed a part of it.
        prefill_time, decode_time, inference_time: from there to the first token; from the first token to the
            last; both together.
        step_tokens: prompt tokens computed and tokens drawn, step by step.
        block_lifetime, block_idle_before_evict: of cached blocks that were given up for others: since they
            were published, and since they were used last.
        block_reuse_gap: how long cached blocks that are used again had been unused.
        num_prompt_tokens: of requests that drew a first token, cached ones too.
        num_cached_tokens: those of them that were in the cache.
    """

    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_SECONDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    e2e_latency: Histogram = field(default_factory=_seconds)
    queue_time: Histogram = field(default_factory=_seconds)
    prefill_time: Histogram = field(default_factory=_seconds)
    decode_time: Histogram = field(default_factory=_seconds)
    inference_time: Histogram = field(default_factory=_seconds)
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(REQUEST_TOKENS))
    generation_tokens: Histogram = field(default_factory=lambda: Histogram(REQUEST_TOKENS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    block_lifetime: Histogram = field(default_factory=_block_seconds)
    block_idle_before_evict: Histogram = field(default_factory=_block_seconds)
    block_reuse_gap: Histogram = field(default_factory=_block_seconds)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def copy(self) -> Histograms:
        """Ones that stay as they are."""
        twin = replace(self)
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Histogram):
                setattr(twin, name, value.copy())
        return twin

    def first_token(self, request: Request, metrics: RequestMetrics) -> None:
        """It has just drawn its first token."""
        self.num_prompt_tokens += len(request.prompt_token_ids)
        self.num_cached_tokens += request.num_cached or 0
        if metrics.time_to_first_token is not None:
            self.time_to_first_token.observe(metrics.time_to_first_token)

    def answered(self, request: Request, metrics: RequestMetrics) -> None:
        """It ended with its answer."""
        self.prompt_tokens.observe(len(request.prompt_token_ids))
        self.generation_tokens.observe(metrics.num_generation_tokens)
        for histogram, seconds in (
            (self.time_per_output_token, metrics.time_per_output_token),
            (self.e2e_latency, metrics.e2e_latency),
            (self.queue_time, metrics.queue_time),
            (self.prefill_time, metrics.prefill_time),
            (self.decode_time, metrics.decode_time),
            (self.inference_time, metrics.inference_time),
        ):
            if seconds is not None:
                histogram.observe(seconds)


class BlockAges:
    """Fills in the histograms of blocks (`core.protocols.BlockWatch`). The core counts in steps; here they
    get times, that of a step's beginning.

    Args:
        histograms: to fill in.
        now: seconds.
        num_steps: how many steps back are known; what is older counts as that old.
    """

    def __init__(self, histograms: Histograms, now: Callable[[], float], num_steps: int = 1 << 16) -> None:
        self._histograms = histograms
        self._now = now
        self._step = 0
        self._began = array("d", bytes(8 * num_steps))

    def begin(self, step: int, now: float) -> None:
        """The steps go on with this one."""
        self._step = step
        self._began[step % len(self._began)] = now

    def evicted(self, published: int, idle_since: int) -> None:
        self._histograms.block_lifetime.observe(self._age(published))
        self._histograms.block_idle_before_evict.observe(self._age(idle_since))

    def reused(self, idle_since: int) -> None:
        self._histograms.block_reuse_gap.observe(self._age(idle_since))

    def _age(self, step: int) -> float:
        oldest = max(self._step - len(self._began) + 1, 1)
        return self._now() - self._began[max(step, oldest) % len(self._began)]
