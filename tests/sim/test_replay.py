from __future__ import annotations

import numpy as np
import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.errors import ExecutorError, LeafageError
from leafage.sim.cost_model import Load
from leafage.sim.hardware import Hardware
from leafage.sim.replay import replay
from leafage.sim.step_costs import StepCosts
from leafage.sim.trace_fit import latencies_of
from leafage.sim.workload import SimRequest, Trace
from tests.sim.real import sleeping_engine
from tests.sim.test_step_costs import SPEC

STEP = 0.01


def test_every_step_is_timed_and_idle_time_is_not() -> None:
    real = sleeping_engine(STEP)
    first, second = SimRequest("a", 0.0, range(20), range(3)), SimRequest("b", 0.25, range(50, 55), range(2))
    result = replay(real, [second, first])
    assert [step.load for step in result.steps] == [
        Load(tokens=20, rows=1, pairs=210, context=20, items=1, starts=1),
        Load(tokens=1, rows=1, pairs=21, context=21, items=1, decode_context=21),
        Load(tokens=1, rows=1, pairs=22, context=22, items=1, decode_context=22),
        Load(tokens=5, rows=1, pairs=15, context=5, items=1, starts=1),
        Load(tokens=1, rows=1, pairs=6, context=6, items=1, decode_context=6),
    ]
    assert all(step.seconds >= STEP for step in result.steps)
    assert all(step.outside == pytest.approx(step.seconds - STEP) for step in result.steps)
    assert sum(step.seconds for step in result.steps) < 0.2 < result.seconds


def test_latency_counts_from_when_a_request_was_due() -> None:
    """The second one is due while a step runs, which sees it only when it has ended."""
    result = replay(
        sleeping_engine(0.1),
        [SimRequest("a", 0.0, range(20), range(2)), SimRequest("b", 0.02, range(50, 60), range(2))],
    )
    records = result.records
    assert records.num_requests == 2
    assert list(records.output_tokens) == [2, 2] and list(records.prompt_tokens) == [20, 10]
    assert list(records.arrival) == pytest.approx([0.0, 0.02])
    ttft = [first - due for first, due in zip(records.first_token, records.arrival, strict=True)]
    assert 0.1 <= ttft[0] < ttft[1] and ttft[1] >= 0.18


def test_the_engine_is_left_as_it_was() -> None:
    real = sleeping_engine()
    replay(real, [SimRequest("a", 0.0, range(20), range(2))])
    assert real.engine.observer is real.metrics and real.metrics.on_finished is None
    assert replay(real, [SimRequest("a", 0.0, range(20), range(2))]).records.num_requests == 1


def test_a_refused_request_ends_the_replay() -> None:
    with pytest.raises(LeafageError, match="600"):
        replay(sleeping_engine(), [SimRequest("a", 0.0, range(600), range(2))])


def test_a_failed_request_ends_the_replay() -> None:
    real = sleeping_engine()
    real.engine.executor = None  # type: ignore[assignment]
    with pytest.raises(ExecutorError):
        replay(real, [SimRequest("a", 0.0, range(20), range(2))])


def test_a_simulation_of_the_same_steps_has_the_same_latencies() -> None:
    """Prompts wait for the token budget, and some arrive while a step runs."""
    real = sleeping_engine(3 * STEP, max_num_seqs=6)
    rng = np.random.default_rng(4)
    requests = [
        SimRequest(str(i), float(rng.uniform(0, 0.6)), range(40 * i, 40 * i + 40), range(i, i + 4 + i % 5))
        for i in range(16)
    ]
    replayed = replay(real, requests)
    each = float(np.mean([step.seconds for step in replayed.steps]))
    steps = StepCosts(spec=SPEC, block_size=16, tokens=((0, each), (1, each)), rows=((0, 0.0), (1, 0.0)))
    hardware = Hardware(
        name="sleeps", flops=1e12, bandwidth=1e10, memory_bytes=1e9, host_bandwidth=1e9, steps=steps
    )
    config = EngineConfig(
        kv_cache_tokens=real.kv_tokens, max_model_len=512, max_num_seqs=6, max_num_batched_tokens=64
    )
    simulated = build_simulation(config, hardware, SPEC).run(Trace(requests))
    assert latencies_of(simulated.records).means == pytest.approx(
        latencies_of(replayed.records).means, rel=0.1
    )
