from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import serve_then_ask

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.engine.request_log import RequestLog
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.workload import SimRequest, Trace

SPEC, HARDWARE = LLMSpec.load("smollm2-135m"), Hardware.load("zen4-2-threads-avx512")


def log_of(
    path: Path, asked: list[serve_then_ask.Question], settings: dict[str, Any]
) -> serve_then_ask.Numbers:
    """A log as the server writes it, of an engine whose time is made up; what the engine says of itself."""
    simulation = build_simulation(EngineConfig(**settings), HARDWARE, SPEC)
    log = RequestLog(path, simulation.metrics, block_size=16)
    requests = [
        SimRequest(
            str(i), one.due, one.prompt, range((i + 1) << 20, ((i + 1) << 20) + serve_then_ask.ANSWER_TOKENS)
        )
        for i, one in enumerate(asked)
    ]
    result = simulation.run(Trace(requests))
    log.close()
    return serve_then_ask.summarized(result)


def test_a_log_simulated_with_the_same_settings_says_what_happened(tmp_path: Path) -> None:
    """Where the real time is the simulator's, nothing is off; another policy, asked of that log, is answered
    as if it had been there."""
    asked = serve_then_ask.questions(12, 20, num_tasks=24, vocab_size=49152, seed=1)
    real = {}
    for policy in ("fcfs", "longest_prefix"):
        settings = {**serve_then_ask.SETTINGS, "policy": policy}
        real[policy] = log_of(tmp_path / policy, asked, settings)
        told = serve_then_ask.told(tmp_path / policy, real[policy].mean_batch)
        assert vars_of(told) == pytest.approx(vars_of(real[policy]), rel=1e-3)
        simulated = serve_then_ask.simulate(tmp_path / "fcfs", HARDWARE, SPEC, settings)
        assert vars_of(simulated) == pytest.approx(vars_of(real[policy]), rel=0.02)
    assert real["longest_prefix"].ttft_mean < 0.5 * real["fcfs"].ttft_mean
    assert real["longest_prefix"].hit_rate > real["fcfs"].hit_rate + 0.1


def vars_of(numbers: serve_then_ask.Numbers) -> dict[str, float]:
    return {name: getattr(numbers, name) for name in numbers.__slots__}


def test_questions_of_a_task_begin_alike() -> None:
    asked = serve_then_ask.questions(50, 10, num_tasks=3, vocab_size=49152, seed=2)
    heads = {tuple(one.prompt[: serve_then_ask.TASK_TOKENS]) for one in asked}
    assert len(heads) == 3 and len({tuple(one.prompt) for one in asked}) == len(asked)
    assert all(0 < one.due < 10 for one in asked) and 400 < len(asked) < 600


def test_variants() -> None:
    assert serve_then_ask.parse_variant("policy=fair,block_size=32") == {"policy": "fair", "block_size": 32}
