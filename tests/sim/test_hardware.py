from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.cost_model import CostModel, Load
from leafage.sim.hardware import Hardware, known_hardware
from leafage.sim.llm_spec import LLMSpec
from tests.sim.test_step_costs import COSTS, SPEC

NUMBERS = {"flops": 1e12, "bandwidth": 2e11, "memory_bytes": 1e9, "host_bandwidth": 1e10}


@pytest.mark.parametrize("name", known_hardware())
def test_every_shipped_device_is_complete(name: str) -> None:
    hardware = Hardware.load(name)
    assert hardware.name == name
    assert 0 < hardware.product_flops < hardware.flops and hardware.attention_flops > 0


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "neon", "plain", "NumPy"])
def test_every_instruction_set_has_a_machine(kernels: str) -> None:
    assert Hardware.of_cpu(kernels).threads > 0


def test_a_file_is_read_back_with_all_that_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    hardware = Hardware(
        name="here", **NUMBERS, threads=2, block_efficiency=((1, 0.5, 0.6), (16, 0.9, 1.0)), steps=COSTS
    )
    hardware.save(file)
    assert Hardware.load(str(file)) == hardware


def test_a_file_may_be_as_short_as_four_numbers(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS))
    assert Hardware.load(str(file)) == Hardware(name="mine", **NUMBERS)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({**NUMBERS, "flops": 0}, "^hardware: flops is out of range; got 0"),
        ({**NUMBERS, "flops": "fast"}, "flops is out of range"),
        ({**NUMBERS, "flops": True}, "flops is out of range"),
        ({**NUMBERS, "threads": -1}, "threads is out of range; got -1; limit: a number, 0 or more"),
        ({**NUMBERS, "memory_share": 1.5}, "memory_share is out of range; got 1.5; limit: above 0 to 1"),
        ({**NUMBERS, "watts": 5}, "unknown numbers; got 'watts'"),
        ({"flops": 1.0}, "lacks bandwidth, memory_bytes, host_bandwidth; got"),
        ([1, 2], "holds no object"),
        ({**NUMBERS, "block_efficiency": 5}, "a value of the wrong kind"),
        ({**NUMBERS, "block_efficiency": [["x", 1, 1]]}, "a value of the wrong kind"),
        ({**NUMBERS, "block_efficiency": [[16, 0.9, 0.9], [1, 0.5, 0.5]]}, "block_efficiency is no curve"),
        ({**NUMBERS, "block_efficiency": [[16, 1.9, 1.0]]}, "block_efficiency is out of range"),
        ({**NUMBERS, "steps": [1]}, "steps is no object"),
        ({**NUMBERS, "steps": {"rows": []}}, "steps does not hold the expected numbers"),
    ],
)
def test_other_numbers_are_refused(numbers: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(numbers))
    with pytest.raises(InvalidParameterError, match=message):
        Hardware.load(str(file))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="unknown hardware"):
        Hardware.load(str(tmp_path / "missing.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        Hardware.load(str(broken))


def test_operations_of_a_cpu_grow_with_its_threads() -> None:
    two = Hardware(name="cpu", **NUMBERS, threads=2, steps=COSTS)
    eight = two.with_threads(8)
    assert (eight.flops, eight.bandwidth, eight.threads) == (4e12, 2e11, 8)
    assert eight.steps is None, "what was measured was measured with two"
    assert two.with_threads(2) is two
    gpu = Hardware(name="gpu", **NUMBERS)
    assert gpu.with_threads(8) is gpu


def test_attention_slows_down_where_blocks_are_small() -> None:
    curve = ((1, 0.5, 0.25), (16, 0.9, 0.75), (256, 1.0, 1.0))
    hardware = Hardware(name="cpu", **NUMBERS, block_efficiency=curve)
    assert hardware.attention_slowdown(1) == (2.0, 4.0)
    assert hardware.attention_slowdown(4) == pytest.approx((1 / 0.7, 2.0))
    assert hardware.attention_slowdown(256) == hardware.attention_slowdown(1024) == (1.0, 1.0)
    assert Hardware(name="gpu", **NUMBERS).attention_slowdown(1) == (1.0, 1.0)


def test_the_roofline_counts_the_slowdown_in_attention_alone() -> None:
    spec = LLMSpec.load("smollm2-135m")
    even = Hardware(name="even", **NUMBERS)
    slow = Hardware(name="slow", **NUMBERS, block_efficiency=((1, 0.5, 0.5), (16, 1.0, 1.0)))
    ones, sixteens = CostModel(slow, spec, block_size=1), CostModel(slow, spec, block_size=16)
    prompt = Load(tokens=64, rows=1, pairs=64 * 65 // 2, context=64, items=1)
    far = Load(tokens=1, rows=1, pairs=8000, context=8000, items=1, decode_context=8000)
    assert sixteens.seconds_of(far) == CostModel(even, spec).seconds_of(far)
    extra = 8000 * spec.kv_bytes_per_token / (2e11 * 0.8)
    assert ones.seconds_of(far) - sixteens.seconds_of(far) == pytest.approx(extra)
    assert sixteens.seconds_of(prompt) < ones.seconds_of(prompt) < 1.05 * sixteens.seconds_of(prompt)


def test_measured_steps_replace_the_roofline_for_their_model_alone() -> None:
    hardware = Hardware(name="here", **NUMBERS, steps=COSTS)
    load = Load(tokens=2, rows=2, pairs=300, context=300, items=2, decode_context=300)
    measured, other = CostModel(hardware, SPEC), CostModel(hardware, LLMSpec.load("llama-3.2-1b"))
    assert measured.is_measured and not other.is_measured
    assert measured.seconds_of(load) == pytest.approx(3e-3 + 1e-3 + 2 * 1e-4 + 300 * 1e-6)
    assert other.seconds_of(load) == CostModel(
        Hardware(name="", **NUMBERS), LLMSpec.load("llama-3.2-1b")
    ).seconds_of(load)


def test_measured_attention_slows_down_as_blocks_of_another_size_do() -> None:
    hardware = Hardware(
        name="here",
        **NUMBERS,
        steps=COSTS,
        block_efficiency=((1, 0.25, 1.0), (16, 0.5, 1.0), (256, 1.0, 1.0)),
    )
    load = Load(tokens=1, rows=1, pairs=1000, context=1000, items=1, decode_context=1000)
    at = {size: CostModel(hardware, SPEC, block_size=size).seconds_of(load) for size in (1, 16, 256)}
    assert at[1] - at[16] == pytest.approx(1000 * 1e-6)
    assert at[16] - at[256] == pytest.approx(1000 * 0.5e-6)


def test_transfers_come_on_top_of_measured_steps() -> None:
    model = CostModel(Hardware(name="here", **NUMBERS, steps=COSTS), SPEC)
    moved = model.seconds_of(Load(moved_blocks=3))
    assert moved == pytest.approx(3 * (16 * SPEC.kv_bytes_per_token / 1e10 + 10e-6))
