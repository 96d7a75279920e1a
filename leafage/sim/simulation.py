"""A simulation: a workload through the engine, on simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from leafage.core.fast_forward import FastForward
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine import Engine
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.errors import LeafageError
from leafage.sim.cost_model import decode_load
from leafage.sim.executor import SimExecutor, VirtualClock
from leafage.sim.result import Records, SimResult
from leafage.sim.timeline import Timeline
from leafage.sim.verdict import Verdict
from leafage.sim.workload import SimRequest, Workload


class Simulation:
    """An engine with a simulated executor. It runs one workload.

    Args:
        engine: over a `SimExecutor` that answers from `requests`.
        clock: the executor's.
        metrics: the engine's observer.
        requests: those that are unfinished, by id; filled and emptied here.
        fast_forward: take quiet steps together (`core.fast_forward`). Results are the same, to the last bit.
    """

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        metrics: EngineMetrics,
        requests: dict[str, SimRequest],
        *,
        fast_forward: bool = True,
    ) -> None:
        self.engine = engine
        self.fast_forward = fast_forward
        assert isinstance(engine.executor, SimExecutor)
        self._executor = engine.executor
        self.clock = clock
        self.metrics = metrics
        self._requests = requests
        self._records = Records()
        self._ended: list[SimRequest] = []
        self._timeline = Timeline()
        self._workload: Workload | None = None
        self._on_progress: Callable[[int, float], None] | None = None
        self._verdict: Verdict | None = None
        metrics.on_finished = self._finished

    def run(
        self,
        workload: Workload,
        *,
        until: float = math.inf,
        on_progress: Callable[[int, float], None] | None = None,
        verdict: Verdict | None = None,
    ) -> SimResult:
        """Simulate until everything is answered, or until `until` seconds.

        Args:
            on_progress: told (requests ended, simulated seconds) after steps in which some ended.
            verdict: stop once it is missed; the result is that of the requests that have ended.

        Requests that could never run are counted as refused, and the rest goes on.
        """
        self.begin(workload, on_progress, verdict)
        self.advance(until)
        return self.result()

    def begin(
        self,
        workload: Workload,
        on_progress: Callable[[int, float], None] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Say what is to be simulated, as `run` does. Then `advance`, and `add` what else there is."""
        assert self._workload is None, "a simulation runs one workload"
        self._workload = workload
        self._arrivals = Arrivals(workload)
        self._on_progress = on_progress
        self._verdict = verdict

    def advance(self, until: float) -> None:
        """Simulate up to the end of the step that ends at `until` seconds or later, or until nobody comes."""
        assert self._workload is not None, "begin first"
        engine, clock, arrivals = self.engine, self.clock, self._arrivals
        while clock.now() < until:
            if self._verdict is not None and self._verdict.is_missed:
                break
            if not engine.has_unfinished:
                if arrivals.next_time == math.inf:
                    break
                self._executor.rest(min(arrivals.next_time, until))
            for request in arrivals.until(clock.now()):
                self._add(request)
            if not engine.has_unfinished:
                continue
            if not (self.fast_forward and self._forward(min(arrivals.next_time, until))):
                engine.step()
                self._stepped()
            if self._ended:
                for request in self._ended:
                    arrivals.follow(self._workload.finished(request, clock.now()))
                self._ended.clear()
                if self._on_progress is not None:
                    self._on_progress(self._records.num_requests, clock.now())

    def add(self, request: SimRequest) -> None:
        """A request arrives that is not the workload's own: `advance` to its arrival first."""
        self._executor.rest(request.arrival)
        for earlier in self._arrivals.until(request.arrival):
            self._add(earlier)
        self._add(request)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    def result(self) -> SimResult:
        """What there is so far."""
        scheduler = self.engine.scheduler
        self._take_point()
        return SimResult(
            records=self._records,
            seconds=self.clock.now(),
            usage=self.metrics.usage_seconds,
            counters=scheduler.counters,
            kv_counters=scheduler.kv.counters,
            num_slots=scheduler.kv.num_blocks * scheduler.kv.block_size,
            block_size=scheduler.kv.block_size,
            swap_counters=scheduler.kv.swap.counters,
            timeline=self._timeline,
        )

    def _forward(self, until: float) -> bool:
        """Quiet steps, up to the one that ends at `until` or later. False: the next step is not quiet."""
        ahead = FastForward(self.engine.scheduler, self._executor.next_tokens)
        began = self.clock.now()
        while began < until and ahead.step():
            self._executor.forward(decode_load(ahead.num_seqs, ahead.context))
            self.metrics.forwarded(ahead.usage, began)
            self._stepped()
            began = self.clock.now()
        self.metrics.forward_ended(ahead.end())
        return ahead.num_steps > 0

    def _stepped(self) -> None:
        if self.clock.now() >= self._timeline.next_time:
            self._take_point()

    def _take_point(self) -> None:
        scheduler = self.engine.scheduler
        self._timeline.take(
            self.clock.now(),
            self.metrics.usage_seconds,
            scheduler.counters,
            num_waiting=scheduler.num_waiting,
        )

    def _add(self, request: SimRequest) -> None:
        try:
            self.engine.add_request(
                request.request_id,
                request.prompt,
                params_of(request),
                priority=request.priority,
                tenant=request.tenant,
                cache_salt=request.cache_salt,
            )
        except LeafageError as error:
            self._records.refuse(error)
            if self._verdict is not None:
                self._verdict.num_missed += 1
        else:
            self._requests[request.request_id] = request
            # It came while a step ran; it waits from then on.
            self.metrics.of(request.request_id).arrival_time = request.arrival

    def _finished(self, request: Request, metrics: RequestMetrics) -> None:
        answered, verdict = self._records.add(request, metrics), self._verdict
        if verdict is not None and not (answered and self._records.attained(-1, verdict.slo)):
            verdict.num_missed += 1
        self._ended.append(self._requests.pop(request.request_id))


def params_of(request: SimRequest) -> SamplingParams:
    """Parameters under which the engine generates exactly the answer of the trace."""
    return _params(request.n, request.beam_width, len(request.output))


@lru_cache(4096)
def _params(n: int, beam_width: int | None, max_tokens: int) -> SamplingParams:
    return SamplingParams(n=n, beam_width=beam_width, temperature=1.0, max_tokens=max_tokens, ignore_eos=True)


class Arrivals:
    """The requests of a workload in order of arrival: those known from the start, and those that follow."""

    def __init__(self, workload: Workload) -> None:
        self._known = iter(workload)
        self._next = next(self._known, None)
        self._following: list[tuple[float, int, SimRequest]] = []
        self._number = 0

    @property
    def next_time(self) -> float:
        """When the next one arrives; infinity when nobody does."""
        known = math.inf if self._next is None else self._next.arrival
        return min(known, self._following[0][0]) if self._following else known

    def until(self, time: float) -> list[SimRequest]:
        """Take those that have arrived by `time`."""
        taken = []
        while self.next_time <= time:
            if self._following and (self._next is None or self._following[0][0] < self._next.arrival):
                taken.append(heapq.heappop(self._following)[2])
            else:
                assert self._next is not None
                taken.append(self._next)
                self._next = next(self._known, None)
        return taken

    def follow(self, requests: Iterable[SimRequest]) -> None:
        """Add requests that something else brought about."""
        for request in requests:
            self._number += 1
            heapq.heappush(self._following, (request.arrival, self._number, request))
