"""A workload on a real engine, with a clock that really runs: what a simulation of it is compared with."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

from leafage.core.batch import Batch
from leafage.core.request import Delta, Request
from leafage.engine.engine import Engine, Observer
from leafage.engine.engine_thread import EngineThread
from leafage.engine.inputs import NewRequest
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.engine.output import OutputProcessor, RequestOutput
from leafage.errors import RequestError
from leafage.sim.cost_model import Load, load_of
from leafage.sim.result import Records
from leafage.sim.simulation import params_of
from leafage.sim.workload import SimRequest

IDLE = 1e-3
"""Seconds without work after which a step counts as a start."""


@dataclass(frozen=True, slots=True)
class RealEngine:
    """An idle engine that computes, and what surrounds it; `cli` and benchmarks hand one in.

    Attributes:
        metrics: the engine's observer.
        vocab_size: ids of prompts are below it.
        max_num_batched_tokens, max_num_seqs, max_model_len, kv_tokens: its limits.
    """

    engine: Engine
    outputs: OutputProcessor
    metrics: EngineMetrics
    vocab_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    kv_tokens: int


@dataclass(slots=True)
class Step:
    """What one step did and took: all of the loop, from its scheduling to the next one's, without idle time.

    Attributes:
        outside: the part of `seconds` outside native calls.
    """

    load: Load
    seconds: float
    outside: float


@dataclass(slots=True)
class Replay:
    """A finished replay.

    Attributes:
        records: times of its requests, in seconds since its start.
        steps: in order.
        seconds: from its start to the end of the last request.
    """

    records: Records = field(default_factory=Records)
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0


def replay(real: RealEngine, requests: Iterable[SimRequest]) -> Replay:
    """Send each request at its arrival (seconds from now) and stream its answer to nobody.

    Of `output` only the length counts: the engine computes so many tokens of its own. Returns when all have
    ended. The latency of a request counts from the moment it was due, whatever the engine did then.

    Raises:
        RequestError: a request failed.
        LeafageError: a request was refused.
    """
    due = sorted(requests, key=lambda request: request.arrival)
    result, watch = Replay(), _Watch(real)
    ended = threading.Semaphore(0)
    failed: list[Exception] = []
    accepted: list[Future[None]] = []

    def sink(output: RequestOutput) -> None:
        if output.error is not None:
            failed.append(output.error)
        if output.finished:
            ended.release()

    real.engine.observer = watch
    thread = EngineThread(real.engine, real.outputs)
    began = time.perf_counter()

    def finished(request: Request, metrics: RequestMetrics) -> None:
        metrics.arrival_time = began + arrivals[request.request_id]
        result.records.add(request, _since(metrics, began))

    arrivals = {request.request_id: request.arrival for request in due}
    real.metrics.on_finished = finished
    try:
        for request in due:
            wait = began + request.arrival - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            new = NewRequest(request.request_id, list(request.prompt), params_of(request))
            accepted.append(thread.submit([new], [sink], stream=True))
        for future in accepted:
            future.result()
        for _ in due:
            while not ended.acquire(timeout=1.0):
                if not thread.is_alive:
                    raise RequestError("the engine ended before all requests did")
        result.seconds = time.perf_counter() - began
    finally:
        thread.close()
        real.metrics.on_finished = None
        real.engine.observer = watch.watched
    if failed:
        raise failed[0]
    result.steps = watch.steps()
    return result


def _since(metrics: RequestMetrics, began: float) -> RequestMetrics:
    """The same times, counted from `began`."""

    def shift(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    return RequestMetrics(
        arrival_time=metrics.arrival_time - began,
        first_scheduled_time=shift(metrics.first_scheduled_time),
        first_token_time=shift(metrics.first_token_time),
        last_token_time=shift(metrics.last_token_time),
        finished_time=shift(metrics.finished_time),
        num_generation_tokens=metrics.num_generation_tokens,
    )


class _Watch:
    """Watches an engine: the load of every step, and what its counters of time said before it."""

    def __init__(self, real: RealEngine) -> None:
        self.watched: Observer | None = real.engine.observer
        self._times = real.engine.times
        self._loads: list[Load] = []
        self._looks: list[tuple[float, float, float]] = []
        self._idle = -math.inf

    def steps(self) -> list[Step]:
        """All steps; the engine has stopped.

        A look is taken when a step's batch is made. New requests are accepted before it: their time belongs
        to the step that sees them, also after an idle while.
        """
        looks = [*self._looks, self._look()]
        steps = []
        accepted = looks[0][2]
        for load, (this, after) in zip(self._loads, pairwise(looks), strict=True):
            outside = after[0] - this[0] + this[2] - accepted
            accepted = this[2]
            if load.tokens:
                steps.append(Step(load, outside + after[1] - this[1], outside))
        return steps

    def _look(self) -> tuple[float, float, float]:
        """Seconds so far: outside native calls without accepting requests, inside, and accepting."""
        outside = self._times.outside
        return sum(outside.values()) - outside["accept"], sum(self._times.native.values()), outside["accept"]

    def added(self, request: Request) -> None:
        if self.watched is not None:
            self.watched.added(request)

    def scheduled(self, batch: Batch) -> None:
        if self.watched is not None:
            self.watched.scheduled(batch)
        load = load_of(batch)
        self._loads.append(load)
        self._looks.append(self._look())
        idle = self._times.last - sum(self._looks[-1])
        load.starts = int(idle > self._idle + IDLE)
        self._idle = idle

    def stepped(self, batch: Batch, deltas: list[Delta]) -> None:
        if self.watched is not None:
            self.watched.stepped(batch, deltas)

    def aborted(self, request_id: str) -> None:
        if self.watched is not None:
            self.watched.aborted(request_id)
