from __future__ import annotations

from pathlib import Path

import pytest

from leafage import LLM
from leafage.calibration import _solve, calibrate
from leafage.errors import InvalidParameterError
from leafage.hardware import Hardware


def test_two_prompts_give_both_rates() -> None:
    work = [(2e9, 1e8), (8e9, 1.6e9)]
    measured = [(ops, flops, ops / 4e9 + flops / 1e9) for ops, flops in work]
    assert _solve(measured) == (pytest.approx(4e9), pytest.approx(1e9))


def test_attention_that_noise_leaves_no_time_counts_as_fast_as_the_rest() -> None:
    assert _solve([(2e9, 1e8, 0.6), (8e9, 1.6e9, 2.0)]) == (4.8e9, 4.8e9)


@pytest.mark.real_model
def test_a_calibrated_file_is_read_back(smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    with LLM(str(smollm2_path), kv_cache_tokens=1024, max_model_len=1024) as llm:
        hardware = calibrate(llm, repetitions=1)
    hardware.save(file)
    assert Hardware.load("avx512", str(file)) == hardware
    assert 1e8 < hardware.ops < 1e13 and 1e8 < hardware.copy_bytes < 1e12
    with LLM(str(smollm2_path), kv_cache_tokens=512, hardware=str(file)) as llm:
        cost = llm.build.engine.scheduler.admission.restore_cost
        assert cost.per_block > 0
        with pytest.raises(InvalidParameterError, match="too small to calibrate"):
            calibrate(llm)
