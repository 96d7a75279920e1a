"""What `/metrics` says, in Prometheus' formats: vLLM's names where it has one, behind `leafage:`.

The engine and the server keep plain numbers. A scrape copies them between two steps, on the engine's thread,
and turns them into text on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from leafage.core.misses import MISS_REASONS
from leafage.core.prefix_index import NoIndex
from leafage.core.request import FinishKind
from leafage.core.step_times import PARTS
from leafage.core.usage import KINDS
from leafage.engine.async_engine import AsyncEngine
from leafage.engine.engine import Engine
from leafage.engine.histograms import Histogram, Histograms
from leafage.engine.metrics import EngineMetrics, engine_stats
from leafage.server.http_counters import HttpCounters

PREFIX = "leafage:"
SCRAPE_TIMEOUT = 0.5
"""Seconds that a scrape waits for the step that runs; then it tells what the scrape before it was told."""

Stats = Mapping[str, int | float]

# metric, what it counts, key of `engine_stats`
_GAUGES = (
    ("num_requests_running", "Requests in the batch.", "num_requests_running"),
    (
        "num_requests_waiting",
        "Requests that wait to be admitted, preempted ones too.",
        "num_requests_waiting",
    ),
    ("kv_cache_usage_perc", "Share of the KV cache's blocks that is active, 0 to 1.", "kv_cache_usage_perc"),
    ("kv_blocks_pinned", "Active blocks that pinned prefixes hold.", "kv_blocks_pinned"),
    ("num_pins", "Pinned prefixes.", "num_pins"),
)
_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    ("num_preemptions", "Requests that lost their KV cache to others and waited.", "num_preemptions"),
    ("generation_tokens", "Tokens drawn.", "generation_tokens"),
    ("prompt_tokens_computed", "Tokens of prompts, and lost in preemptions, that were run.", "prompt_tokens"),
    ("recomputed_tokens", "Tokens run again after a preemption.", "recomputed_tokens"),
    ("recompute_hits", "Tokens of preempted requests found in the prefix cache.", "recompute_hits"),
    ("kv_blocks_evicted", "Cached blocks given up for others.", "kv_blocks_evicted"),
    ("swap_refused", "Preempted requests that the swap space had no room for.", "swap_refused"),
    ("swap_transfers_lost", "Preempted requests whose transfer failed.", "swap_transfers_lost"),
    ("engine_steps", "Steps of the engine.", "num_steps"),
    ("engine_busy_seconds", "Time inside steps.", "busy_seconds"),
    ("engine_native_seconds", "Time inside native calls.", "native_seconds"),
    ("running_sequence_seconds", "Running sequences, times the seconds of steps.", "seq_seconds"),
    ("observer_errors", "Faults while metrics were taken; requests never see them.", "num_observer_errors"),
)
# metric, what it counts, label, its values, prefix of the keys of `engine_stats`
_LABELLED_GAUGES = (
    ("kv_blocks", "Blocks of the KV cache; together all of them.", "state", ("active", "cached", "free")),
    (
        "kv_slots",
        "Token slots of the KV cache by what they are for; duplicates are among the stored ones.",
        "kind",
        KINDS,
    ),
)
_LABELLED_COUNTERS = (
    (
        "request_success",
        "Requests that ended.",
        "finished_reason",
        tuple(kind.value for kind in FinishKind),
        "request_success_{}",
    ),
    (
        "prefix_cache_miss_tokens",
        "Prompt tokens not found in the prefix cache: never there (no_match), there but part of a block that "
        "cannot be shared (below_block), given up lately (evicted), under another cache_salt (salt).",
        "reason",
        MISS_REASONS,
        "prefix_cache_miss_{}",
    ),
    (
        "kv_slot_seconds",
        "Token slots of the KV cache by what they are for, times the seconds of steps.",
        "kind",
        KINDS,
        "kv_slot_seconds_{}",
    ),
    (
        "swapped_blocks",
        "Blocks moved to the swap space and back.",
        "direction",
        ("out", "in"),
        "swapped_{}_blocks",
    ),
    ("engine_step_seconds", "Time of steps outside native calls.", "part", PARTS, "{}_seconds"),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Histograms], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From arrival to the first token.", lambda h: h.time_to_first_token),
    (
        "inter_token_latency_seconds",
        "Between steps in which a request drew tokens.",
        lambda h: h.inter_token_latency,
    ),
    (
        "request_time_per_output_token_seconds",
        "Mean per output token after the first, of each request.",
        lambda h: h.time_per_output_token,
    ),
    ("e2e_request_latency_seconds", "From arrival to the end.", lambda h: h.e2e_latency),
    (
        "request_queue_time_seconds",
        "From arrival to the first step with the request.",
        lambda h: h.queue_time,
    ),
    (
        "request_prefill_time_seconds",
        "From the first step with the request to its first token.",
        lambda h: h.prefill_time,
    ),
    ("request_decode_time_seconds", "From the first token to the last.", lambda h: h.decode_time),
    (
        "request_inference_time_seconds",
        "From the first step with the request to the last token.",
        lambda h: h.inference_time,
    ),
    ("request_prompt_tokens", "Tokens of the prompt, of each request.", lambda h: h.prompt_tokens),
    ("request_generation_tokens", "Tokens drawn, for each request.", lambda h: h.generation_tokens),
    (
        "kv_block_lifetime_seconds",
        "From when a block was cached until it was given up for others.",
        lambda h: h.block_lifetime,
    ),
    (
        "kv_block_idle_before_evict_seconds",
        "How long nobody had used a cached block when it was given up for others.",
        lambda h: h.block_idle_before_evict,
    ),
    (
        "kv_block_reuse_gap_seconds",
        "How long nobody had used a cached block when it was used again.",
        lambda h: h.block_reuse_gap,
    ),
    (
        "iteration_tokens_total",  # a histogram: vLLM's name, suffix and all
        "Prompt tokens run and tokens drawn, in each step.",
        lambda h: h.step_tokens,
    ),
)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Numbers of one moment between two steps."""

    stats: Stats
    histograms: Histograms


class Exposition(Collector):
    """The metrics of one server, and the one owner of their registry. On the event loop.

    Make it before the first request.

    Args:
        model_name: the label that every metric has.
        engine: the engine's thread.
        core, metrics: the engine that it steps, and its observer, which is given histograms to fill in.
        http: the server's own counters.
        rejections: requests that a limit of the server turned away, by reason.
        cache_dtype: what K and V are kept in.
        num_lost_lines: requests that are missing in the request log.
    """

    def __init__(
        self,
        model_name: str,
        engine: AsyncEngine,
        core: Engine,
        metrics: EngineMetrics,
        http: HttpCounters,
        rejections: Mapping[str, int],
        *,
        cache_dtype: str = "auto",
        num_lost_lines: Callable[[], int] = lambda: 0,
        timeout: float = SCRAPE_TIMEOUT,
    ) -> None:
        self._model_name = model_name
        self._engine = engine
        self._core = core
        self._metrics = metrics
        self._http = http
        self._rejections = rejections
        self._num_lost_lines = num_lost_lines
        self._timeout = timeout
        kv = core.scheduler.kv
        has_cache = not isinstance(kv.index, NoIndex)
        self._cache_config = {
            "block_size": str(kv.block_size),
            "cache_dtype": cache_dtype,
            "enable_prefix_caching": str(has_cache),
            "num_gpu_blocks": str(kv.num_blocks),  # what vLLM calls them, on CPUs too
        }
        self._has_cache = has_cache
        self._histograms = metrics.keep_histograms()
        self._last = self._snapshot()
        self._pending: asyncio.Task[_Snapshot] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics, and their content type, in the format that the `Accept` header asks for.

        While a step takes longer than the timeout, or the engine is dead, numbers of the engine are those of
        the scrape before; `last_step_age_seconds` and the server's own are always those of now.
        """
        await self._refresh()
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    async def _refresh(self) -> None:
        if self._pending is None or self._pending.done():  # else the engine still owes one: ask no more
            self._pending = asyncio.create_task(self._engine.call(self._snapshot))
        asked = self._pending
        done, _ = await asyncio.wait([asked], timeout=self._timeout)
        if done and self._pending is asked and asked.exception() is None:  # else the engine is closed or dead
            self._last = asked.result()

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(engine_stats(self._core, self._metrics), self._histograms.copy())

    def collect(self) -> Iterator[Metric]:
        """All of it, in the order in which it is written."""
        stats = self._last.stats
        for name, text, key in _GAUGES:
            yield self._gauge(name, text, [((), stats[key])])
        for name, text, label, values in _LABELLED_GAUGES:
            yield self._gauge(name, text, (((value,), stats[f"{name}_{value}"]) for value in values), label)
        yield self._gauge(
            "prefix_cache_enabled", "Whether prefixes are shared.", [((), int(self._has_cache))]
        )
        yield self._gauge(
            "last_step_age_seconds",
            "Time since the last step ended, while there is work; grows when the engine hangs.",
            [((), self._engine.step_age)],
        )
        yield self._cache_config_info()
        for name, text, key in _COUNTERS:
            yield self._counter(name, text, [((), stats[key])])
        for name, text, label, values, keys in _LABELLED_COUNTERS:
            samples = (((value,), stats.get(keys.format(value), 0)) for value in values)
            yield self._counter(name, text, samples, label)
        yield from self._derived(stats)
        for name, text, histogram in _HISTOGRAMS:
            yield self._histogram(name, text, histogram(self._last.histograms))
        yield from self._of_server()

    def _derived(self, stats: Stats) -> Iterator[Metric]:
        histograms, swapped = self._last.histograms, stats["num_swap_outs"]
        yield self._counter(
            "prompt_tokens",
            "Prompt tokens of requests that drew a token, cached ones too.",
            [((), histograms.num_prompt_tokens)],
        )
        yield self._counter(
            "prompt_tokens_cached",
            "Prompt tokens of requests that drew a token, as far as they were cached.",
            [((), histograms.num_cached_tokens)],
        )
        yield self._counter(
            "num_preemptions_by_kind",
            "Preemptions by what became of the KV cache: moved to the swap space, or to be recomputed.",
            [(("swap",), swapped), (("recompute",), stats["num_preemptions"] - swapped)],
            "kind",
        )

    def _of_server(self) -> Iterator[Metric]:
        http = self._http
        yield self._gauge("http_requests_in_flight", "Requests being answered.", [((), http.num_in_flight)])
        yield self._counter(
            "http_responses",
            "Responses by class of their status.",
            (((status,), count) for status, count in http.responses.items()),
            "status",
        )
        yield self._counter(
            "http_requests_rejected",
            "Requests that a limit of the server turned away.",
            (((reason,), count) for reason, count in self._rejections.items()),
            "reason",
        )
        yield self._counter(
            "request_log_lost", "Requests missing in the request log.", [((), self._num_lost_lines())]
        )

    def _gauge(
        self, name: str, text: str, samples: Iterable[tuple[tuple[str, ...], float]], *labels: str
    ) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=("model_name", *labels))
        for values, value in samples:
            family.add_metric((self._model_name, *values), value)
        return family

    def _counter(
        self, name: str, text: str, samples: Iterable[tuple[tuple[str, ...], float]], *labels: str
    ) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=("model_name", *labels))
        for values, value in samples:
            family.add_metric((self._model_name, *values), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=("model_name",))
        buckets, below = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            below += count
            buckets.append((_le(bound), below))
        family.add_metric((self._model_name,), buckets, histogram.sum)
        return family

    def _cache_config_info(self) -> Metric:
        config = self._cache_config
        return self._gauge(
            "cache_config_info", "Facts of the KV cache.", [(tuple(config.values()), 1)], *config
        )


def _le(bound: float) -> str:
    """A bucket's bound as Prometheus writes it."""
    return "+Inf" if bound == float("inf") else str(float(bound))
