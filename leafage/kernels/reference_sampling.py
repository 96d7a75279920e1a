"""Sampling in NumPy, exactly as the native sampler defines it (csrc/sampler.h): its specification and oracle.

Penalties, bias and bans come first (log-probabilities are taken of these logits), then, as in vLLM,
temperature, min_p, top_k, top_p and the draw. The weight of a token is trunc(2^40 * e), where e is the
float32 exponential of (logit - max) / temperature; all sums are sums of integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

WEIGHT_SCALE = np.float32(2.0**40)


@dataclass(slots=True)
class SamplingRow:
    """What to do with one row of logits.

    Attributes:
        draws: (seed, absolute position) of each token to draw.
        targets: tokens to report after the draws, for prompt log-probabilities.
        num_top: how many of the best tokens to report; None reports no log-probabilities at all.
        seen: ids in the sequence so far -> how often they are in its output (0: in the prompt only).
        bias: id -> value added to its logit; -inf bans it.
    """

    draws: Sequence[tuple[int, int]] = ()
    targets: Sequence[int] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_top: int | None = None
    seen: Mapping[int, int] = field(default_factory=dict)
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class SampledRow:
    """What a row gave: one entry per draw, then per target. `usable` is False when a logit was NaN or the
    largest was not finite; the rest is empty then. `top` holds (id, log-probability), best first."""

    usable: bool
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top: list[tuple[int, float]] = field(default_factory=list)


def sample(logits: np.ndarray, rows: Sequence[SamplingRow]) -> list[SampledRow]:
    """One result per row of `logits` (float32 [rows, vocab]), which is left as it is."""
    return [_sample_row(row_logits.copy(), row) for row_logits, row in zip(logits, rows, strict=True)]


def _sample_row(logits: np.ndarray, row: SamplingRow) -> SampledRow:
    if not row.draws and not row.targets:
        return SampledRow(True)
    _edit(logits, row)
    top = logits.max()
    if np.isnan(logits).any() or not np.isfinite(top):
        return SampledRow(False)
    if row.temperature > 0 and row.draws:
        ids, weights = distribution(logits, row)
        total = int(weights.sum())
        cumulative = np.cumsum(weights)
        targets = [random_bits(seed, position) * total >> 64 for seed, position in row.draws]
        tokens = [int(ids[np.searchsorted(cumulative, target, side="right")]) for target in targets]
    else:
        tokens = [int(logits.argmax())] * len(row.draws)
    result = SampledRow(True, [*tokens, *row.targets])
    if row.num_top is not None:
        total = int(weights_of(logits, 1.0)[1].sum())
        log_sum = float(np.log(total / float(WEIGHT_SCALE)))
        logprobs = logits.astype(np.float64) - float(top) - log_sum
        result.logprobs = [float(logprobs[t]) for t in result.tokens]
        result.ranks = [1 + int((logits > logits[t]).sum()) for t in result.tokens]
        best = np.lexsort((np.arange(len(logits)), -logits))[: row.num_top]
        result.top = [(int(i), float(logprobs[i])) for i in best]
    return result


def _edit(logits: np.ndarray, row: SamplingRow) -> None:
    for token_id, count in row.seen.items():
        if row.repetition_penalty != 1.0:
            penalty = np.float32(row.repetition_penalty)
            value = logits[token_id]
            logits[token_id] = value / penalty if value > 0 else value * penalty
        if count > 0:
            logits[token_id] -= np.float32(row.frequency_penalty) * np.float32(count)
            logits[token_id] -= np.float32(row.presence_penalty)
    for token_id, value in row.bias.items():
        logits[token_id] = -np.inf if value == -np.inf else logits[token_id] + np.float32(value)


def weights_of(logits: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """(float32 exponentials, integer weights) of all tokens."""
    inverse = 1.0 / temperature
    scale = np.float32(inverse if inverse < 1e30 else 1e30)
    exps = exp((logits - logits.max()) * scale)
    return exps, (exps * WEIGHT_SCALE).astype(np.int64)


def distribution(logits: np.ndarray, row: SamplingRow) -> tuple[np.ndarray, np.ndarray]:
    """(ids, weights) of the tokens that min_p, top_k and top_p leave, in order of id.

    top_k keeps tokens that equal the k-th best; top_p keeps a token while the weight before it, best first
    and equal ones by id, is below top_p of what min_p and top_k left.
    """
    exps, weights = weights_of(logits, row.temperature)
    ids = np.flatnonzero(exps >= np.float32(row.min_p)) if row.min_p > 0 else np.arange(len(logits))
    if 0 < row.top_k < len(ids):
        kth = np.sort(logits[ids])[len(ids) - row.top_k]
        ids = ids[logits[ids] >= kth]
    if row.top_p < 1.0:
        order = ids[np.lexsort((ids, -logits[ids]))]
        before = np.cumsum(weights[order]) - weights[order]
        keep = before.astype(np.float64) < row.top_p * float(weights[ids].sum())
        keep[0] = True
        ids = np.sort(order[keep])
    return ids, weights[ids]


def exp(x: np.ndarray) -> np.ndarray:
    """float32 e^x, operation by operation as in csrc/vec.h; clamped to [-87.3, 88.3]."""
    f = np.float32
    x = np.clip(x.astype(np.float32), f(-87.3), f(88.3))
    n = (x * f(1.44269504) + f(12582912.0)) - f(12582912.0)
    r = x - n * f(0.693359375)
    r = r + n * f(2.12194440e-4)
    p = np.full_like(r, f(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(c)
    p = p * r * r + r + f(1.0)
    power: np.ndarray = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    result: np.ndarray = p * power
    return result


def random_bits(key: int, counter: int) -> int:
    """64 bits from Philox4x32-10 (Salmon et al., SC 2011)."""
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, (key >> 32) & mask
    c0, c1, c2, c3 = counter & mask, (counter >> 32) & mask, 0, 0
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0 << 32 | c1
