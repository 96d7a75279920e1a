from __future__ import annotations

import numpy as np
import pytest

from leafage.sim.least_squares import nnls


def test_exact_costs_are_found() -> None:
    matrix = np.array([[1.0, 0.0, 2.0], [1.0, 3.0, 0.0], [1.0, 1.0, 1.0], [0.0, 2.0, 5.0]])
    assert nnls(matrix, matrix @ [0.5, 0.0, 2.0]) == pytest.approx([0.5, 0.0, 2.0])


def test_a_cost_that_would_be_negative_is_zero_and_the_others_are_best_without_it() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nnls(matrix, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_a_cost_that_was_found_first_can_leave_again() -> None:
    """The first column is the nearest to the target, and worth nothing beside both others together."""
    matrix = np.array([[1.5, 1.0, 0.5], [1.5, 0.5, 1.0], [0.3, 0.0, 0.0]])
    assert nnls(matrix, np.array([1.5, 1.5, -0.03])) == pytest.approx([0.0, 1.0, 1.0])


def test_columns_of_very_different_size_and_of_zeros() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.random((50, 4)) * [1e6, 1.0, 1e-6, 0.0]
    costs = np.array([1e-6, 2.0, 3e6, 0.0])
    assert nnls(matrix, matrix @ costs) == pytest.approx(costs)


def test_no_cost_can_change_for_the_better() -> None:
    """The conditions of Karush, Kuhn and Tucker, which hold at the minimum alone."""
    zeros = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        matrix = rng.standard_normal((30, 8)) + 2 * rng.random((30, 1))  # alike, as counts of a step are
        target = matrix @ rng.standard_normal(8) + rng.standard_normal(30)
        found = nnls(matrix, target)
        gain = matrix.T @ (target - matrix @ found)
        assert found.min() >= 0 and gain.max() < 1e-9
        assert gain[found > 0] == pytest.approx(0, abs=1e-9)
        zeros += int((found == 0).sum())
    assert 20 < zeros < 140, "some must be held at zero, or the conditions say little"
