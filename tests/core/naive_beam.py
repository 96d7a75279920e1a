"""Beam search as its definition reads: every step computes all beams from scratch. Oracle of core/beam.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Logprobs = Callable[[list[int]], np.ndarray]
"""All tokens so far -> log-probability of every next token; -inf where it is banned."""


@dataclass
class Answer:
    tokens: list[int]
    score: float


def naive_beam_search(
    logprobs: Logprobs,
    prompt: list[int],
    *,
    width: int,
    max_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
    min_tokens: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Answer]:
    """The best `width` answers, best first."""
    beams: list[tuple[list[int], np.float32]] = [([], np.float32(0))]
    done: list[Answer] = []
    for length in range(1, max_tokens + 1):
        table = np.stack([score + np.float32(logprobs(prompt + tokens)) for tokens, score in beams])
        table = table.astype(np.float32)
        beam_ids, token_ids = np.divmod(np.arange(table.size), table.shape[1])
        order = np.lexsort((token_ids, beam_ids, -table.ravel()))[: max(2, 1 + len(stop_ids)) * width]
        running: list[tuple[list[int], np.float32]] = []
        full = early_stopping is True and len(done) == width
        for place, flat in enumerate(order):
            score, token = table.ravel()[flat], int(token_ids[flat])
            if not np.isfinite(score):
                continue
            tokens = [*beams[beam_ids[flat]][0], token]
            stops = token in stop_ids and length >= min_tokens
            if not stops and length < max_tokens:
                running.append((tokens, score))
            elif place < width and not full:
                done.append(Answer(tokens, float(score / np.float32(float(length) ** length_penalty))))
        done = sorted(done, key=lambda a: -a.score)[:width]
        beams = running[:width]
        if not beams:
            break
        if len(done) == width:
            if early_stopping is True:
                break
            horizon = max_tokens if early_stopping == "never" and length_penalty > 0 else length
            if not beams[0][1] / np.float32(float(horizon) ** length_penalty) > done[-1].score:
                break
    return done
