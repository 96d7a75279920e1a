"""The native sampler on the rows of its oracle, `reference_sampling.sample`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leafage.kernels.native_sampling import NativeSampler, SamplingPlan, SamplingState
from leafage.kernels.reference_sampling import SampledRow, SamplingRow


def state_of(row: SamplingRow, vocab: int) -> SamplingState:
    state = SamplingState(
        vocab,
        row.temperature,
        row.top_p,
        row.min_p,
        row.top_k,
        row.repetition_penalty,
        row.presence_penalty,
        row.frequency_penalty,
        -1 if row.num_top is None else row.num_top,
    )
    for token_id, count in row.seen.items():
        state.see([token_id], False)
        state.see([token_id] * count, True)
    return state


def plan_of(rows: Sequence[SamplingRow], vocab: int) -> SamplingPlan:
    draws = [draw for row in rows for draw in (*row.draws, *((0, 0) for _ in row.targets))]
    return SamplingPlan(
        vocab,
        [state_of(row, vocab) for row in rows],
        [len(row.draws) + len(row.targets) for row in rows],
        [seed for seed, _ in draws],
        [position for _, position in draws],
        [target for row in rows for target in (*(-1 for _ in row.draws), *row.targets)],
        [(i, token_id, value) for i, row in enumerate(rows) for token_id, value in row.bias.items()],
    )


def results_of(plan: SamplingPlan, rows: Sequence[SamplingRow]) -> list[SampledRow]:
    results, end = [], 0
    tokens, logprobs, ranks = plan.tokens, plan.logprobs, plan.ranks
    for row, usable, top in zip(rows, plan.usable, plan.tops, strict=True):
        begin, end = end, end + len(row.draws) + len(row.targets)
        if not usable:
            results.append(SampledRow(False))
        elif row.num_top is None:
            assert np.isnan(logprobs[begin:end]).all() and not any(ranks[begin:end]) and not top
            results.append(SampledRow(True, tokens[begin:end]))
        else:
            results.append(SampledRow(True, tokens[begin:end], logprobs[begin:end], ranks[begin:end], top))
    return results


def sample_natively(
    logits: np.ndarray, rows: Sequence[SamplingRow], *, num_threads: int = 1
) -> list[SampledRow]:
    """As `reference_sampling.sample`, by the native sampler."""
    vocab = logits.shape[1]
    plan = plan_of(rows, vocab)
    NativeSampler(vocab, num_threads=num_threads).run(plan, logits)
    return results_of(plan, rows)
