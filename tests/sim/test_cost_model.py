"""The paper GPU against the numbers that follow from its constants."""

from __future__ import annotations

import pytest

from leafage.core.batch import Batch, Copy, Item, Logits, Sample, Transfer
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError
from leafage.sim.cost_model import CostModel, Load, load_of
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


def test_load_counts_prompts_apart_from_decoding() -> None:
    params = SamplingParams()

    def item(start: int, count: int, samples: int) -> Item:
        drawn = [Sample(index, start + count, 0) for index in range(samples)]
        tokens = list(range(count))
        return Item(0, "r", [], start, tokens, 0, Logits.LAST, drawn, 0, params, tokens, 1)

    batch = Batch(
        [item(9, 1, 1), item(0, 4, 0), item(6, 2, 3)],
        copies=[Copy(0, 1, 5)],
        swap_in=[Transfer(0, 0, 0)],
    )
    assert load_of(batch) == Load(
        tokens=7,
        rows=2,
        pairs=10 + (1 + 2 + 3 + 4) + (7 + 8),
        context=10 + 4 + 8,
        moved_blocks=1,
        copied_slots=5,
        items=3,
        decode_context=10,
    )
