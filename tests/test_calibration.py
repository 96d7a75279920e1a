from __future__ import annotations

from pathlib import Path

import pytest

from leafage import LLM
from leafage.build import build_simulation
from leafage.calibration import calibrate, spec_of
from leafage.config import EngineConfig
from leafage.sim.calibrate import ROUNDS
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.workload import SimRequest, Trace
from leafage.tiny_model import write_tiny_model


def test_a_calibrated_file_is_read_by_the_engine_and_the_simulator(tmp_path: Path) -> None:
    """Of a tiny model, whose speed means nothing."""
    model, file = str(write_tiny_model(tmp_path / "tiny")), tmp_path / "machine.json"
    said: list[str] = []
    with LLM(model, kv_cache_tokens=8192, max_num_seqs=8, max_num_batched_tokens=32, threads=1) as llm:
        hardware, fit = calibrate(llm, name="here", on_progress=said.append)
        spec = spec_of(llm.build)
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (2, 64, 128, 96)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.kv_bytes_each) == (4, 2, 32, 2.0)
    assert not spec.tied_embeddings and spec.context_length == 4096
    assert fit.held_out["all"].count > 20 and len(said) > 12 * ROUNDS
    assert hardware.steps == fit.costs and (hardware.name, hardware.threads) == ("here", 1)
    assert 1e8 < hardware.host_bandwidth < 1e12 and 1e7 < hardware.file_bandwidth < 1e12
    curve = hardware.block_efficiency
    assert [size for size, *_ in curve] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert curve[0][1] < 0.5 < curve[-1][1], "blocks of one token are gathered token by token"
    hardware.save(file)
    assert Hardware.load(str(file)) == hardware

    with LLM(model, kv_cache_tokens=512, threads=1, hardware=str(file)) as llm:
        cost = llm.build.engine.scheduler.admission.restore_cost
        block_bytes = llm.build.plan.block_bytes
    assert cost.per_block == pytest.approx(2 * block_bytes / hardware.host_bandwidth)
    assert cost.per_transfer == hardware.copy_seconds
    assert cost.per_token == pytest.approx(2 * spec.num_layer_params / hardware.product_flops)

    config = EngineConfig(kv_cache_tokens=8192, max_num_seqs=8)
    simulated = build_simulation(config, hardware, spec).run(
        Trace([SimRequest("a", 0.0, range(20), range(100, 103))])
    )
    assert simulated.seconds == pytest.approx(
        _step(fit.costs, 20, 210, 0, starts=1) + _step(fit.costs, 1, 0, 21) + _step(fit.costs, 1, 0, 22)
    )


def _step(costs: object, tokens: int, pairs: int, context: int, *, starts: int = 0) -> float:
    from leafage.sim.cost_model import Load
    from leafage.sim.step_costs import MeasuredSteps, StepCosts

    assert isinstance(costs, StepCosts)
    load = Load(tokens, 1, pairs + context, 0, items=1, decode_context=context, starts=starts)
    return MeasuredSteps(costs).seconds_of(load)


@pytest.mark.real_model
def test_the_shape_of_a_real_model(smollm2_path: Path) -> None:
    with LLM(str(smollm2_path), kv_cache_tokens=512) as llm:
        spec = spec_of(llm.build)
    assert spec.has_shape_of(LLMSpec.load("smollm2-135m")) and 0.6 < spec.weight_bytes_each < 0.8
