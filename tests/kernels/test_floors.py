from __future__ import annotations

import pytest

from leafage.kernels import _native


def test_figures_are_of_this_world() -> None:
    bandwidth = _native.measure_bandwidth(64 << 20, 1)
    assert 1e8 < bandwidth < 1e13
    peak, instruction = _native.measure_int8_peak(1)
    assert 1e8 < peak < 1e15 and instruction
    assert _native.measure_bandwidth(64 << 20, 2, reads=3) > 1e8


@pytest.mark.parametrize("threads", [0, -1, 2000])
def test_impossible_threads_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        _native.measure_int8_peak(threads)
    with pytest.raises(ValueError, match="threads"):
        _native.measure_bandwidth(64 << 20, threads)


def test_too_small_a_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        _native.measure_bandwidth(1000, 1)


def test_the_better_instruction_is_the_faster() -> None:
    fast, name = _native.measure_int8_peak(1)
    was_on = _native.use_amx(True)
    try:
        _native.use_amx(False)
        slow, other = _native.measure_int8_peak(1)
    finally:
        _native.use_amx(was_on)
    if name == other:
        pytest.skip("no AMX here")
    assert fast > slow
