"""Non-negative least squares: costs that are fitted to times are never below zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that minimizes |matrix x - target|.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23), on columns
    scaled to length 1.

    Args:
        matrix: [rows, columns]; columns of zeros get 0.
        target: [rows].

    Returns:
        [columns].
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = np.inf
    scaled = matrix / scale
    count = scaled.shape[1]
    free = np.zeros(count, bool)
    x = np.zeros(count)
    tolerance = 1e-10 * max(1.0, float(np.linalg.norm(target)))
    for _ in range(3 * count):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            if trial[free].min() > 0:
                x = trial
                break
            # As far towards it as nothing gets negative; what reaches zero is fixed there.
            falling = free & (trial <= 0)
            step = float(np.min(x[falling] / (x[falling] - trial[falling])))
            x = x + step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0.0
            if not free.any():
                break
    found: Floats = x / scale
    return found
