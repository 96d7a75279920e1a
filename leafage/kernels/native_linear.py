"""`linear` and `embed` of the native kernels on their own; all is checked before a pointer is taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leafage.kernels import _native


class Linear:
    """Runs `linear` and `embed` outside a program, on a team of `num_threads`. Not thread-safe.

    Raises:
        ValueError: an array has another dtype, shape or layout than expected.
    """

    def __init__(self, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise ValueError(f"expected num_threads >= 1, got {num_threads}")
        self._runner = _native.LinearRunner(num_threads)

    def linear(
        self,
        x: np.ndarray,
        weights: Sequence[_native.PackedWeight],
        *,
        bias: np.ndarray | None = None,
        add_to: np.ndarray | None = None,
        precise: bool = False,
    ) -> np.ndarray:
        """x @ W.T for each weight, side by side.

        Args:
            x: float32 [rows, k].
            weights: matrices of k columns each.
            bias: float32 [sum of rows of the weights].
            add_to: float32 [rows, sum of rows]; the result is added to it in place, and it is returned.
            precise: finer quantization of activations (csrc/linear_layout.h).
        """
        if not weights:
            raise ValueError("expected at least one weight, got none")
        _check("x", x, (None, weights[0].cols))
        for weight in weights:
            if weight.cols != weights[0].cols:
                raise ValueError(f"expected weights of {weights[0].cols} columns, got one of {weight.cols}")
        width = sum(weight.rows for weight in weights)
        if bias is not None:
            _check("bias", bias, (width,))
        if add_to is not None:
            _check("add_to", add_to, (x.shape[0], width))
        out = np.empty((x.shape[0], width), np.float32) if add_to is None else add_to
        added = [] if bias is None else bias.tolist()
        self._runner.linear(x, list(weights), out, added, add_to is not None, precise)
        return out

    def repeat(
        self,
        x: np.ndarray,
        weights: Sequence[_native.PackedWeight],
        out: np.ndarray,
        times: int,
        precise: bool = False,
    ) -> None:
        """x times each of the weights (all of one shape), one after the other into `out`
        float32 [rows, outputs], and all of it `times` times; for benchmarks."""
        _check("x", x, (None, weights[0].cols))
        if any((w.rows, w.cols) != (weights[0].rows, weights[0].cols) for w in weights):
            raise ValueError("expected weights of one shape")
        _check("out", out, (x.shape[0], weights[0].rows))
        self._runner.repeat(x, list(weights), out, times, precise)

    def embed(self, table: _native.PackedWeight, token_ids: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
        """Rows `token_ids` (int32 [n]) of the table times scale: float32 [n, cols]."""
        _check("token_ids", token_ids, (None,), np.int32)
        if len(token_ids) and not (int(token_ids.min()) >= 0 and int(token_ids.max()) < table.rows):
            raise ValueError(
                f"expected token ids in [0, {table.rows}), got {token_ids.min()} to {token_ids.max()}"
            )
        out = np.empty((len(token_ids), table.cols), np.float32)
        self._runner.embed(table, token_ids, out, scale)
        return out


def _check(name: str, array: np.ndarray, shape: tuple[int | None, ...], dtype: type = np.float32) -> None:
    expected = f"{np.dtype(dtype)} [{', '.join('*' if n is None else str(n) for n in shape)}], C-contiguous"
    fits = array.ndim == len(shape) and all(
        n is None or n == m for n, m in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits or not array.flags.c_contiguous:
        layout = "" if array.flags.c_contiguous else ", not C-contiguous"
        raise ValueError(f"expected {name} as {expected}, got {array.dtype} {list(array.shape)}{layout}")
