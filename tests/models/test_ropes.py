"""Rope scalings at the numbers of published models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leafage.errors import ModelFileError
from leafage.models.ropes import RopeConfig, yarn_magnitude


def inv_freq(config: RopeConfig) -> np.ndarray:
    return np.array(config.rope(interleaved=False).inv_freq)


def test_frequencies_of_the_paper() -> None:
    np.testing.assert_allclose(inv_freq(RopeConfig(10_000.0, 8)), [1, 0.1, 0.01, 0.001])


def test_linear_divides_all() -> None:
    plain, scaled = RopeConfig(1e6, 128), RopeConfig(1e6, 128, "linear", factor=8.0)
    np.testing.assert_allclose(inv_freq(scaled), inv_freq(plain) / 8)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    plain = inv_freq(RopeConfig(500_000.0, 128))
    scaled = inv_freq(RopeConfig(500_000.0, 128, "llama3", factor=8.0, original_context=8192))
    wavelength = 2 * math.pi / plain
    np.testing.assert_allclose(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4])
    np.testing.assert_allclose(scaled[wavelength > 8192], plain[wavelength > 8192] / 8)
    between = (wavelength > 8192 / 4) & (wavelength < 8192)
    assert between.sum() > 3
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_yarn_keeps_fast_pairs_stretches_slow_ones_and_raises_the_magnitude() -> None:
    config = RopeConfig(1e6, 128, "yarn", factor=4.0, original_context=32768)
    plain, scaled = inv_freq(RopeConfig(1e6, 128)), inv_freq(config)
    turns = 32768 * plain / (2 * math.pi)
    np.testing.assert_allclose(scaled[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(scaled[turns < 0.8], plain[turns < 0.8] / 4)
    assert (np.diff(scaled) < 0).all()
    assert yarn_magnitude(4.0) == pytest.approx(1.1386294)
    assert yarn_magnitude(1.0) == 1.0


def test_factors_of_the_file_divide() -> None:
    rope = RopeConfig(10_000.0, 4).rope(interleaved=True, freq_factors=np.array([1.0, 4.0], np.float32))
    assert rope.interleaved and rope.inv_freq == pytest.approx((1.0, 0.0025))


def test_impossible_ramps_are_refused() -> None:
    with pytest.raises(ModelFileError, match="low_freq_factor"):
        RopeConfig(1e4, 8, "llama3", factor=8.0, original_context=64, low_freq_factor=4.0)
