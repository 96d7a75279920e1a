from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.engine.request_log import RequestLog
from leafage.errors import InvalidParameterError, TraceFileError
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SimResult
from leafage.sim.step_costs import StepCosts
from leafage.sim.trace_file import TraceFile
from leafage.sim.trace_fit import compare, fit_trace, latencies_of, read_measured
from leafage.sim.workload import SimRequest, Trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
LINE = {
    "arrival_time": 1000.0,
    "queued_ts": 7.0,
    "first_token_ts": 8.0,
    "last_token_ts": 10.0,
    "input_toks": 5,
    "output_toks": 5,
}


def write(path: Path, *changes: dict[str, float]) -> Path:
    path.write_text("".join(json.dumps({**LINE, **change}) + "\n" for change in changes))
    return path


def test_two_clocks_are_joined_where_a_request_waited_least(tmp_path: Path) -> None:
    second = {"arrival_time": 1001.0, "queued_ts": 8.5, "first_token_ts": 9.0, "output_toks": 1}
    measured = read_measured(write(tmp_path / "run.jsonl", {}, second))
    assert list(measured.ttft) == pytest.approx([1.0, 1.0]), "of the second from 8.0, not from 8.5"
    assert list(measured.tpot) == [0.5]
    assert measured.throughput == pytest.approx(6 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_token_ts": 6.0}, "line 2: queued_ts, first_token_ts and last_token_ts are not in order"),
        ({"queued_ts": float("nan")}, "line 2: queued_ts is not a finite number"),
        ({"output_toks": -1}, "line 2: output_toks is negative"),
    ],
)
def test_a_wrong_line_is_refused(tmp_path: Path, change: dict[str, float], message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        read_measured(write(tmp_path / "run.jsonl", {}, change))


def test_a_file_without_measurements_is_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    empty.write_text("\n")
    other.write_text('{"arrival_time": 1}\n')
    with pytest.raises(TraceFileError, match="no request was measured"):
        read_measured(empty)
    with pytest.raises(TraceFileError, match="line 1: the field queued_ts is missing"):
        read_measured(other)
    with pytest.raises(TraceFileError, match="cannot be read"):
        read_measured(tmp_path / "missing.jsonl")


def simulator(spec: str, **settings: int) -> object:
    config = EngineConfig(
        watermark=0.0, preemption="recompute", prefix_index="none", max_num_seqs=32, **settings
    )
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 30, 60))
    requests = [
        SimRequest(str(i), float(arrivals[i]), range(prompt), range(output))
        for i, (prompt, output) in enumerate(rng.integers((50, 5), (800, 40), (60, 2)).tolist())
    ]

    def simulate(hardware: Hardware) -> SimResult:
        return build_simulation(config, hardware, LLMSpec.load(spec)).run(Trace(requests))

    return simulate


def test_constants_are_found_again() -> None:
    simulate = simulator("llama-3.2-1b", max_num_batched_tokens=1024, kv_cache_tokens=20_000)
    start = Hardware.load("l4")
    truth = replace(start, compute_efficiency=0.4, memory_efficiency=0.6, step_seconds=2e-3)
    measured = latencies_of(simulate(truth).records)  # type: ignore[operator]
    before = latencies_of(simulate(start).records)  # type: ignore[operator]
    assert max(abs(before.means / measured.means - 1)) > 0.15
    said: list[tuple[int, int]] = []
    found = fit_trace(start, measured, simulate, on_progress=lambda *done: said.append(done))  # type: ignore[arg-type]
    assert found.simulated.means == pytest.approx(measured.means, rel=0.02)
    assert found.hardware.compute_efficiency == pytest.approx(0.4, rel=0.15)
    assert said[0][0] == 1 and len(said) == said[-1][0] <= said[-1][1]
    rows = {name: (a, b) for name, a, b in compare(measured, found.simulated)}
    assert list(rows)[:2] == ["mean TTFT", "P50 TTFT"] and len(rows) == 9
    assert rows["throughput"][1] == found.simulated.throughput


def test_requests_that_do_not_fit_are_said() -> None:
    simulate = simulator("llama-3.2-1b", max_num_batched_tokens=1024, kv_cache_tokens=160)
    with pytest.raises(InvalidParameterError, match="requests of the trace do not fit"):
        latencies_of(simulate(Hardware.load("l4")).records)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("device", "budget", "kv_tokens", "constants"),
    [
        ("rtx4090", 2048, 41_408, (0.878, 0.849, 0.543e-3)),
        ("rtx-pro-6000", 8192, None, (0.787, 0.581, 0.442e-3)),
    ],
)
def test_constants_of_vllm_runs_meet_the_means(
    device: str, budget: int, kv_tokens: int | None, constants: tuple[float, float, float]
) -> None:
    """What the fit found, simulated once more (the fit itself takes minutes)."""
    path = TRACES / f"measured_vllm_llama31_8b_{device.replace('-', '')}.jsonl"
    if not path.is_file():
        pytest.skip("the measured traces are not here")
    config = EngineConfig(
        max_num_seqs=128,
        max_num_batched_tokens=budget,
        kv_cache_tokens=kv_tokens,
        watermark=0.0,
        preemption="recompute",
        prefix_index="none",
    )
    compute, memory, step = constants
    hardware = replace(
        Hardware.load(device), compute_efficiency=compute, memory_efficiency=memory, step_seconds=step
    )
    simulation = build_simulation(config, hardware, LLMSpec.load("llama-3.1-8b"))
    simulated = latencies_of(simulation.run(TraceFile(path)).records)
    assert simulated.means == pytest.approx(read_measured(path).means, rel=0.05)


def logged(path: Path, hardware: Hardware) -> SimResult:
    """Serve requests on a device and write the request log of it."""
    simulation = build_simulation(EngineConfig(kv_cache_tokens=4096), hardware, LLMSpec.load("smollm2-135m"))
    log = RequestLog(path, simulation.metrics)
    rng = np.random.default_rng(0)
    requests = [
        SimRequest(str(i), 0.05 * i, range(i << 20, (i << 20) + prompt), range(output), n=1 + i % 2)
        for i, (prompt, output) in enumerate(rng.integers((50, 1), (400, 40), (60, 2)).tolist())
    ]
    result = simulation.run(Trace(requests))
    log.close()
    return result


def test_a_request_log_tells_what_the_engine_knows(tmp_path: Path) -> None:
    result = logged(tmp_path / "log", Hardware.load("zen3-2-threads-avx2"))
    measured, known = read_measured(tmp_path / "log"), latencies_of(result.records)
    assert sorted(measured.ttft) == pytest.approx(sorted(known.ttft), abs=1e-5)
    assert sorted(measured.tpot) == pytest.approx(sorted(known.tpot), abs=1e-5)
    assert measured.throughput == pytest.approx(known.throughput)


def test_requests_without_an_answer_are_left_out_and_wrong_lines_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logged(path, Hardware.load("zen3-2-threads-avx2"))
    count = len(read_measured(path).ttft)
    lines = path.read_text().splitlines()
    record = json.loads(lines[1])
    path.write_text("\n".join([*lines, json.dumps({**record, "ttft": None, "answers": []})]))
    assert len(read_measured(path).ttft) == count
    for change, message in (({"answers": 3}, "answers is no list"), ({"ttft": None}, "ttft is not a finite")):
        path.write_text("\n".join([*lines, json.dumps({**record, **change})]))
        with pytest.raises(TraceFileError, match=f"line {len(lines) + 1}: {message}"):
            read_measured(path)


def test_how_much_longer_measured_steps_took_is_found_again(tmp_path: Path) -> None:
    spec = LLMSpec.load("smollm2-135m")
    costs = StepCosts(
        spec=spec, block_size=16, tokens=((0, 2e-3), (1, 4e-3), (256, 0.1)), rows=((0, 0.0), (64, 0.01))
    )
    device = replace(Hardware.load("zen3-2-threads-avx2"), steps=costs)
    logged(tmp_path / "log", replace(device, steps=costs.scaled(1.3)))
    config, requests = EngineConfig(kv_cache_tokens=4096), TraceFile(tmp_path / "log")
    found = fit_trace(
        device,
        read_measured(tmp_path / "log"),
        lambda machine: build_simulation(config, machine, spec).run(requests),
    )
    assert found.hardware.steps is not None
    factor = found.hardware.steps.seconds_per_token / costs.seconds_per_token
    assert factor == pytest.approx(1.3, rel=0.02)
    assert found.hardware.compute_efficiency == device.compute_efficiency
