"""Exercise 7: one pool for running requests and cache, against a cache with a fixed share of the memory."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.core.batch import Batch
from leafage.core.kv_manager import KVManager
from leafage.core.request import Delta, Request
from leafage.engine.engine import Observer
from leafage.sim.distributions import Exponential, Fixed, Uniform
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Results, Source, Table, Tools
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.sessions import MultiTurn
from leafage.sim.simulation import Simulation

SHARES = (None, 0.25, 0.5)
"""Of the KV cache, for prefixes alone; None: one pool."""
WORKLOADS = {
    "quiet": MultiTurn(
        rate=0.1,
        num_sessions=60,
        turns=Fixed(5),
        output_tokens=Uniform(40, 119),
        think_seconds=Exponential(20),
    ),
    "busy": MultiTurn(
        rate=8,
        num_sessions=150,
        turns=Fixed(3),
        output_tokens=Uniform(100, 300),
        think_seconds=Exponential(5),
    ),
}


class CacheBound:
    """Keeps the cached blocks of a simulation within a number. It stands before the engine's own observer."""

    def __init__(self, simulation: Simulation, max_blocks: int) -> None:
        assert simulation.engine.observer is not None
        self._inner: Observer = simulation.engine.observer
        kv = simulation.engine.scheduler.kv
        assert isinstance(kv, KVManager)
        self._kv = kv
        self._max_blocks = max_blocks
        simulation.engine.observer = self
        simulation.fast_forward = False  # requests end in steps that are shown

    def stepped(self, batch: Batch, deltas: list[Delta]) -> None:
        self._inner.stepped(batch, deltas)
        while self._kv.num_cached > self._max_blocks:
            self._kv.store.evict()

    def scheduled(self, batch: Batch) -> None:
        self._inner.scheduled(batch)

    def added(self, request: Request) -> None:
        self._inner.added(request)

    def aborted(self, request_id: str) -> None:
        self._inner.aborted(request_id)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave: shares of prompt tokens in the cache, and of those it had lost; running sequences;
    output tokens a second; share of the KV cache that holds prefixes nobody runs with."""

    hits: float
    lost: float
    batch: float
    throughput: float
    cached: float


@dataclass(frozen=True, slots=True)
class Divided:
    """A part: one load on scenario A's device.

    A fixed share is made of two settings: admission leaves it free of running requests (as the watermark
    does), and what is cached beyond it is evicted.
    """

    load: str
    share: float | None

    def __call__(self, tools: Tools) -> Measured:
        settings = {"prefix_index": "radix", "watermark": 0.01 if self.share is None else self.share}
        simulation = SCENARIO_A.simulation(tools, **settings)
        scheduler = simulation.engine.scheduler
        if self.share is not None:
            CacheBound(simulation, int(self.share * scheduler.kv.num_blocks))
        result = simulation.run(WORKLOADS[self.load])
        prompts = sum(result.records.prompt_tokens)
        return Measured(
            hits=sum(result.records.cached_tokens) / prompts,
            lost=result.counters.prefix_cache_miss_tokens["evicted"] / prompts,
            batch=result.mean_batch,
            throughput=result.throughput,
            cached=result.share("cached"),
        )


PARTS = {(load, share): Divided(load, share) for load in WORKLOADS for share in SHARES}


def combine(results: Results) -> Outcome:
    """Hits while it is quiet, throughput while it is busy, and what a shared pool loses."""
    found: dict[tuple[str, float | None], Measured] = {key: results[part] for key, part in PARTS.items()}
    columns = [
        Column("load"),
        Column("memory"),
        Column("hits, %", Source.OURS, "{:.1f}"),
        Column("prompt tokens lost to eviction, %", Source.OURS, "{:.1f}"),
        Column("mean batch", Source.OURS, "{:.1f}"),
        Column("tok/s", Source.OURS, "{:.0f}"),
        Column("KV cache holding prefixes, %", Source.OURS, "{:.0f}"),
    ]
    rows: list[list[Cell]] = []
    for (load, share), run in found.items():
        memory = "one pool" if share is None else f"{share:.0%} for prefixes"
        numbers = (100 * run.hits, 100 * run.lost, run.batch, run.throughput, 100 * run.cached)
        rows.append([load, memory, *numbers])
    quiet, busy = found["quiet", None], found["busy", None]
    fixed = [share for share in SHARES if share is not None]
    most_hits = max(found["quiet", share].hits for share in fixed)
    best = max(found["busy", share].throughput for share in fixed)
    checks = [
        Check.shape(
            "quiet: one pool lets the whole memory cache",
            f"{quiet.hits:.1%} hits, at most {most_hits:.1%} with a fixed share",
            "most hits",
            quiet.hits > most_hits,
        ),
        Check.shape(
            "busy: one pool gives memory to a larger batch",
            f"{busy.batch:.1f} sequences and {busy.throughput:.0f} tok/s, at most {best:.0f} tok/s",
            "highest throughput",
            busy.throughput > 1.05 * best,
        ),
        Check.shape(
            "the share of prefixes follows the load by itself",
            f"{quiet.cached:.0%} quiet, {busy.cached:.0%} busy",
            "large, and small",
            quiet.cached > 0.5 > 0.2 > busy.cached,
        ),
        Check.shape(
            "the risk: under load, prefixes are evicted that come back",
            f"{busy.lost:.0%} of the prompt tokens had been cached; {quiet.lost:.0%} when quiet",
            "more when busy",
            busy.lost > quiet.lost,
        ),
    ]
    return Outcome(
        [Table("Conversations on scenario A's device", columns, rows)],
        checks,
        [
            "One pool: free memory is cache, and requests take it back. Its risk is that what a prefix is "
            "worth and what a larger batch is worth are not compared: the least recently used prefix goes, "
            "also when many will ask for it, and a load that comes and goes empties the cache each time. "
            "Pinned prefixes are the remedy for those that are known.",
        ],
    )


DEMOS = (
    Demo(
        "exercise-7",
        ("E7",),
        "Exercise 7: one pool for requests and prefixes, or a fixed share",
        parts=tuple(PARTS.values()),
        combine=combine,
        seconds=1,
    ),
)
