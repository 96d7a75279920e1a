"""Workloads through the real scheduler, on a device whose steps all take a tenth of a second."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.core.kv_manager import KVManager
from leafage.core.request import Request
from leafage.core.scheduler import Scheduler
from leafage.engine.engine import Engine
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.sim.cost_model import Load
from leafage.sim.executor import SimExecutor, VirtualClock
from leafage.sim.result import SimResult
from leafage.sim.simulation import Simulation
from leafage.sim.workload import SimRequest, Workload

STEP = 0.1


class FixedCost:
    """Every step takes as long."""

    def seconds_of(self, load: Load) -> float:
        return STEP


@dataclass
class Ended:
    """A request that a run has ended: what the workload asked, and what the engine did."""

    asked: SimRequest
    request: Request
    metrics: RequestMetrics


def small_simulation(
    *,
    num_blocks: int = 4096,
    block_size: int = 16,
    max_num_seqs: int = 64,
    budget: int = 1 << 16,
    prefix_index: str = "radix",
) -> Simulation:
    """A scheduler over a simulated executor."""
    scheduler = Scheduler(
        KVManager(num_blocks, block_size, prefix_index),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=1 << 16,
    )
    clock = VirtualClock()
    metrics = EngineMetrics(clock, scheduler)
    requests: dict[str, SimRequest] = {}
    engine = Engine(
        scheduler,
        SimExecutor(FixedCost(), clock, requests),
        clock=clock,
        vocab_size=1 << 62,
        seed=0,
        observer=metrics,
    )
    return Simulation(engine, clock, metrics, requests)


def run(workload: Workload, simulation: Simulation | None = None) -> tuple[SimResult, list[Ended]]:
    """Simulate, and keep what the simulation forgets."""
    simulation = simulation or small_simulation()
    ended: list[Ended] = []
    asked: dict[str, SimRequest] = simulation._requests
    record = simulation.metrics.on_finished
    assert record is not None

    def finished(request: Request, metrics: RequestMetrics) -> None:
        ended.append(Ended(asked[request.request_id], request, metrics))
        record(request, metrics)

    simulation.metrics.on_finished = finished
    return simulation.run(workload), ended
