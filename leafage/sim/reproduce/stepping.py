"""Engines without a cost model, for demos that look at blocks step by step."""

from __future__ import annotations

from collections.abc import Iterable

from leafage.core.protocols import KV
from leafage.core.scheduler import Scheduler
from leafage.engine.engine import Engine
from leafage.sim.cost_model import Load
from leafage.sim.executor import SimExecutor, VirtualClock
from leafage.sim.simulation import params_of
from leafage.sim.workload import SimRequest


class _OneSecond:
    """Every step takes one second."""

    def seconds_of(self, load: Load) -> float:
        return 1.0


def engine_over(kv: KV, requests: Iterable[SimRequest], *, max_model_len: int) -> Engine:
    """The scheduler and the engine over a KV manager, with all requests waiting; a step computes all it can.

    Answers are those of the requests, as in a simulation.
    """
    known = {request.request_id: request for request in requests}
    clock = VirtualClock()
    scheduler = Scheduler(kv, max_num_seqs=1024, max_num_batched_tokens=1 << 20, max_model_len=max_model_len)
    executor = SimExecutor(_OneSecond(), clock, known)
    engine = Engine(scheduler, executor, clock=clock, vocab_size=1 << 62, seed=0)
    for request in known.values():
        engine.add_request(request.request_id, request.prompt, params_of(request))
    return engine
