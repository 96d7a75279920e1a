"""Small scenarios for tests."""

from __future__ import annotations

from typing import Any

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.scenario import Scenario


def small_scenario(
    workload: str = "alpaca", config: dict[str, Any] | None = None, **settings: Any
) -> Scenario:
    """A small model on a small device with 30 short requests."""
    defaults = {"prefix_index": "none", "kv_cache_tokens": 2048, "max_model_len": 1024}
    return Scenario(
        build=build_simulation,
        config=EngineConfig(**defaults | (config or {})),
        hardware=Hardware.load("l4"),
        spec=LLMSpec.load("smollm2-135m"),
        workload=workload,
        workload_settings={"num_requests": 30, **settings},
    )
