"""The paper GPU against the numbers that follow from its constants."""

from __future__ import annotations

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.cost_model import CostModel, Load
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec


def cost_model(hardware: str, spec: str, **settings: int) -> CostModel:
    return CostModel(Hardware.load(hardware), LLMSpec.load(spec), **settings)


def test_e4_recomputing_4096_tokens() -> None:
    assert f"{1e3 * cost_model('h100', 'llama-3-8b').prefill_seconds(4096):.1f}" == "89.4"
    assert f"{1e3 * cost_model('h100', 'llama-3-70b').prefill_seconds(4096):.1f}" == "842.3"


def test_r0_5_scenario_a_has_748_blocks() -> None:
    model = cost_model("a100-40gb", "opt-13b")
    assert model.spec.weight_bytes == 26_194_984_960
    assert model.spec.kv_bytes_per_token == 800 * 1024
    assert model.kv_pool_bytes // (16 * model.spec.kv_bytes_per_token) == 748


def test_tensor_parallelism_divides_work_and_adds_reductions() -> None:
    one, four = cost_model("h100", "llama-3-70b"), cost_model("h100", "llama-3-70b", tensor_parallel=4)
    load = Load(tokens=4096, rows=1, pairs=4096 * 4097 // 2, context=4096)
    computed, reduced = (one.seconds_of(load) - 0.5e-3) / 4, 160 * 1.5 * 2 * 8192 * 4096 / 450e9
    assert four.seconds_of(load) == pytest.approx(computed + reduced + 0.5e-3 + 160 * 10e-6)


def test_impossible_tensor_parallelism_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="does not divide the heads"):
        cost_model("h100", "llama-3-8b", tensor_parallel=3)
