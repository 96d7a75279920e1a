"""Plain counters and times of the engine. Exposition formats live in the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leafage.core.batch import Batch
from leafage.core.kv_manager import KVManager
from leafage.core.protocols import Clock
from leafage.core.request import Delta, FinishKind, Request, RequestStatus
from leafage.core.usage import KINDS, Usage, UsageSeconds
from leafage.engine.histograms import BlockAges, Histograms

if TYPE_CHECKING:
    from leafage.core.scheduler import Scheduler
    from leafage.engine.engine import Engine


class MonotonicClock:
    """Seconds of the machine's monotonic clock."""

    now = staticmethod(time.perf_counter)  # several times a step: without a Python call in between


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of the engine's clock; None until it happened.

    `num_generation_tokens` counts the tokens of all its sequences.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generation_tokens: int = 0

    @property
    def queue_time(self) -> float | None:
        """From arrival to the first step that computed a part of it."""
        return _between(self.arrival_time, self.first_scheduled_time)

    @property
    def time_to_first_token(self) -> float | None:
        """TTFT: from arrival to the first output token."""
        return _between(self.arrival_time, self.first_token_time)

    @property
    def prefill_time(self) -> float | None:
        """From the first step that computed a part of it to the first token."""
        return _between(self.first_scheduled_time, self.first_token_time)

    @property
    def decode_time(self) -> float | None:
        """From the first token to the last."""
        return _between(self.first_token_time, self.last_token_time)

    @property
    def inference_time(self) -> float | None:
        """From the first step that computed a part of it to the last token."""
        return _between(self.first_scheduled_time, self.last_token_time)

    @property
    def time_per_output_token(self) -> float | None:
        """TPOT: mean seconds per output token after the first; None where all came at once, as the answers
        of a beam search do."""
        decode = self.decode_time
        if not decode or self.num_generation_tokens < 2:
            return None
        return decode / (self.num_generation_tokens - 1)

    @property
    def e2e_latency(self) -> float | None:
        """From arrival to the end."""
        return _between(self.arrival_time, self.finished_time)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


class EngineMetrics:
    """Watches an engine (`engine.Observer`): the times of requests, and of the loop itself.

    Args:
        clock: the engine's.
        scheduler: whose use of the KV cache is weighed by the time of the steps; None: nobody's.

    Attributes:
        busy_seconds: time inside steps.
        last_step_time: end of the last step, None before the first.
        num_left_waiting: requests that the last step could not begin.
        usage_seconds: the KV cache during steps, each counted as it was while its batch ran.
        on_finished: told of each request that ended, with its times. What it raises is counted and goes no
            further.
        histograms: None until `keep_histograms`.
        num_errors: how often `on_finished` raised.
    """

    def __init__(self, clock: Clock, scheduler: Scheduler | None = None) -> None:
        self.clock = clock
        self.usage_seconds = UsageSeconds()
        self.on_finished: Callable[[Request, RequestMetrics], None] | None = None
        self.histograms: Histograms | None = None
        self.num_errors = 0
        self._scheduler = scheduler
        self._usage = Usage()
        self._num_seqs = 0
        self.busy_seconds = 0.0
        self.last_step_time: float | None = None
        self.num_left_waiting = 0
        self._live: dict[str, tuple[Request, RequestMetrics]] = {}
        self._unscheduled: set[str] = set()
        self._ages: BlockAges | None = None
        self._num_tokens = 0  # of all steps so far
        self._step_began = 0.0

    def keep_histograms(self) -> Histograms:
        """Fill in histograms from now on, as the server wants them. A fast-forward is not in them."""
        if self.histograms is None:
            self.histograms = Histograms()
            if self._scheduler is not None and isinstance(self._scheduler.kv, KVManager):
                self._ages = self._scheduler.kv.store.watch = BlockAges(self.histograms, self.clock.now)
        return self.histograms

    def of(self, request_id: str) -> RequestMetrics:
        """Times of a request that has not ended; a fresh record when it is unknown."""
        entry = self._live.get(request_id)
        return entry[1] if entry is not None else RequestMetrics(self.clock.now())

    @property
    def oldest_arrival(self) -> float:
        """No request that has yet to end, or to come, arrived before this time. Those that come during a step
        are told of after it."""
        for _, metrics in self._live.values():
            return min(metrics.arrival_time, self._step_began)
        return self._step_began

    def added(self, request: Request) -> None:
        self._live[request.request_id] = (request, RequestMetrics(self.clock.now()))
        self._unscheduled.add(request.request_id)

    def scheduled(self, batch: Batch) -> None:
        now = self._step_began = self.clock.now()
        if self._unscheduled:
            for item in batch.items:
                if item.request_id in self._unscheduled:
                    self._unscheduled.discard(item.request_id)
                    self._live[item.request_id][1].first_scheduled_time = now
        if self._scheduler is not None:
            if self._ages is not None:
                self._ages.begin(self._scheduler.step, now)
            roster = self._scheduler.roster
            self._usage = self._scheduler.kv.usage(roster.running)
            self._num_seqs = roster.num_seqs
            self.num_left_waiting = len(roster.waiting)

    def stepped(self, batch: Batch, deltas: list[Delta]) -> None:
        step_before = self.last_step_time
        now = self._weigh(self._usage, self._num_seqs, self._step_began)
        histograms = self.histograms
        num_steady = 0  # drew tokens in the step before, too
        ended: dict[str, bool] = {}
        for delta in deltas:
            entry = self._live.get(delta.request_id)
            if entry is None:
                continue
            request, metrics = entry
            if delta.tokens:
                metrics.num_generation_tokens += len(delta.tokens)
                last = metrics.last_token_time
                metrics.last_token_time = now
                if last is None:
                    metrics.first_token_time = now
                    if histograms is not None:
                        histograms.first_token(request, metrics)
                elif last == step_before:
                    num_steady += 1
                elif last != now and histograms is not None:  # else a sibling drew in this step as well
                    histograms.inter_token_latency.observe(now - last)
            if delta.finish is not None and not request.live:
                ended[delta.request_id] = delta.finish.kind is not FinishKind.ERROR  # siblings may still come
        if histograms is not None:
            if num_steady and step_before is not None:
                histograms.inter_token_latency.observe(now - step_before, num_steady)
            self._count_tokens(histograms)
        for request_id, answered in ended.items():
            self._ended(request_id, now, answered)

    def _count_tokens(self, histograms: Histograms) -> None:
        """The tokens of the step just done; nothing where it failed."""
        if self._scheduler is not None:
            counters = self._scheduler.counters
            before, self._num_tokens = self._num_tokens, counters.prompt_tokens + counters.generated_tokens
            if self._num_tokens > before:
                histograms.step_tokens.observe(self._num_tokens - before)

    def forwarded(self, usage: Usage, began: float) -> None:
        """A step of a fast-forward (`core.fast_forward`) is over. What was drawn is told at its end."""
        num_seqs = 0 if self._scheduler is None else self._scheduler.roster.num_seqs
        self._weigh(usage, num_seqs, began)

    def forward_ended(self, drawn: Iterable[tuple[Request, int]]) -> None:
        """A fast-forward is over: tokens that each request drew in it, the last of them just now."""
        now = self.clock.now()
        for request, num_tokens in drawn:
            metrics = self._live[request.request_id][1]
            metrics.num_generation_tokens += num_tokens
            metrics.last_token_time = now
            if request.status is RequestStatus.FINISHED:
                self._ended(request.request_id, now)

    def _weigh(self, usage: Usage, num_seqs: int, began: float) -> float:
        """Count the time of a step that ends now, returns it."""
        now = self.last_step_time = self.clock.now()
        self.busy_seconds += now - began
        self.usage_seconds.add(usage, num_seqs, now - began)
        return now

    def aborted(self, request_id: str) -> None:
        if request_id in self._live:
            self._ended(request_id, self.clock.now())

    def _ended(self, request_id: str, now: float, answered: bool = False) -> None:
        request, metrics = self._live.pop(request_id)
        metrics.finished_time = now
        self._unscheduled.discard(request_id)
        if answered and self.histograms is not None:
            self.histograms.answered(request, metrics)
        if self.on_finished is not None:
            try:
                self.on_finished(request, metrics)
            except Exception:
                self.num_errors += 1


def engine_stats(engine: Engine, metrics: EngineMetrics) -> dict[str, int | float]:
    """Counters and gauges of an engine, named as vLLM's where it has them. On the thread that steps it.

    Counters only grow. Blocks: free + cached + active = total;
    pinned ones are active. Slots by kind (`core.usage.Usage`), now and,
    as `kv_slot_seconds`, summed over the time of steps; the same of running sequences: `seq_seconds`.
    """
    scheduler, kv = engine.scheduler, engine.scheduler.kv
    engine.pins.expire()
    usage, seconds = kv.usage(scheduler.roster.running), metrics.usage_seconds
    counters = scheduler.counters
    return {
        "num_requests_running": scheduler.num_running,
        "num_requests_waiting": scheduler.num_waiting,
        "kv_blocks_total": kv.num_blocks,
        "kv_blocks_free": kv.num_free,
        "kv_blocks_cached": kv.num_cached,
        "kv_blocks_active": kv.num_active,
        "kv_blocks_pinned": kv.pins.num_blocks,
        "num_pins": len(kv.pins),
        "kv_cache_usage_perc": kv.num_active / kv.num_blocks,
        "kv_blocks_evicted": kv.counters.evicted_blocks,
        **{f"kv_slots_{kind}": getattr(usage, kind) for kind in KINDS},
        **{f"kv_slot_seconds_{kind}": sums for kind, sums in zip(KINDS, seconds.slot_seconds, strict=True)},
        "seq_seconds": seconds.seq_seconds,
        "num_fragmented_admissions": kv.counters.fragmented_admissions,
        "prefix_cache_queries": counters.prefix_queries,
        "prefix_cache_hits": counters.prefix_hits,
        **{f"prefix_cache_miss_{k}": v for k, v in sorted(counters.prefix_cache_miss_tokens.items())},
        "num_preemptions": counters.preemptions,
        "num_swap_outs": counters.swap_outs,
        "num_swap_ins": counters.swap_ins,
        "swapped_out_blocks": kv.swap.counters.blocks_out,
        "swapped_in_blocks": kv.swap.counters.blocks_in,
        "swap_refused": kv.swap.counters.refused,
        "swap_transfers_lost": kv.swap.counters.lost,
        "recomputed_tokens": counters.recomputed_tokens,
        "recompute_hits": counters.recompute_hits,
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generated_tokens,
        **{f"request_success_{k}": v for k, v in sorted(counters.finished.items())},
        "num_steps": counters.steps,
        "busy_seconds": metrics.busy_seconds,
        "native_seconds": sum(engine.times.native.values()),
        **{f"{part}_seconds": seconds for part, seconds in engine.times.outside.items()},
        "num_observer_errors": engine.num_observer_errors + metrics.num_errors,
    }
