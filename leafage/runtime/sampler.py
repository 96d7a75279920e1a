"""From the rows of a batch to the sampler's rows, and from its results to outputs.

What a row draws depends on its own logits, parameters, seed and position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from leafage.core.batch import Batch, Item, ItemOutput, SampledToken
from leafage.core.sampling_params import SamplingParams
from leafage.kernels.native_sampling import NativeSampler
from leafage.kernels.reference_sampling import SampledRow, SamplingRow

NOT_FINITE = "the model's logits are not finite"
NAN = float("nan")


class _Seen:
    """Ids of one sequence and how often each is in its output; grows with the history."""

    __slots__ = ("counts", "num_seen")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.num_seen = 0

    def extend(self, history: list[int], num_prompt_tokens: int) -> dict[int, int]:
        counts = self.counts
        if self.num_seen < num_prompt_tokens:
            counts.update(zip(history[self.num_seen : num_prompt_tokens], repeat(0)))
            self.num_seen = num_prompt_tokens
        for token_id in history[self.num_seen :]:
            counts[token_id] = counts.get(token_id, 0) + 1
        self.num_seen = len(history)
        return counts


class Sampler:
    """Sampling for all sequences of an executor; keeps what the penalties count, per sequence.

    Args:
        vocab_size: length of a row of logits.
        program: the compiled program whose threads do the work; None takes one thread of its own.
    """

    def __init__(self, vocab_size: int, program: Any = None) -> None:
        self._native = NativeSampler(vocab_size, program=program)
        self._seen: dict[int, _Seen] = {}

    def release(self, seq_ids: Sequence[int]) -> None:
        """Forget these sequences."""
        for seq_id in seq_ids:
            self._seen.pop(seq_id, None)

    def process(
        self, batch: Batch, rows: Sequence[tuple[int, int]], logits: np.ndarray, outputs: list[ItemOutput]
    ) -> None:
        """Fill `outputs` from logits [len(rows), vocab]; rows: (item index, offset in the item)."""
        items = batch.items
        if all(_is_plain(items[index]) for index, _ in rows):
            for (index, _), token_id in zip(rows, self._native.greedy(logits).tolist(), strict=True):
                if token_id < 0:
                    outputs[index].row_error = NOT_FINITE
                else:
                    outputs[index].sampled += [SampledToken(token_id, NAN) for _ in items[index].samples]
            return
        wanted = [self._row(items[index], offset) for index, offset in rows]
        for (index, _), row, result in zip(rows, wanted, self._native.sample(logits, wanted), strict=True):
            if result.usable:
                _report(items[index], row, result, outputs[index])
            else:
                outputs[index].row_error = NOT_FINITE

    def _row(self, item: Item, offset: int) -> SamplingRow:
        params = item.params
        position = item.start + offset + 1
        row = SamplingRow()
        if params.prompt_logprobs is not None and position < item.num_prompt_tokens:
            row.targets = (item.history[position],)
            row.num_top = item.top_k_logprobs
            return row  # the model's own view of the prompt: penalties and bias are for drawing
        if not item.samples or offset != len(item.token_ids) - 1:
            return row
        row.draws = [(sample.seed, sample.position) for sample in item.samples]
        row.temperature = params.temperature
        row.top_p, row.min_p, row.top_k = params.top_p, params.min_p, params.top_k
        if params.logprobs is not None:
            row.num_top = item.top_k_logprobs
        if _has_penalties(params):
            row.repetition_penalty = params.repetition_penalty
            row.presence_penalty = params.presence_penalty
            row.frequency_penalty = params.frequency_penalty
            seen = self._seen.setdefault(item.seq_id, _Seen())
            row.seen = seen.extend(item.history, item.num_prompt_tokens)
        banned = _banned_ids(item)
        if params.logit_bias or banned:
            row.bias = {**params.logit_bias, **dict.fromkeys(banned, -np.inf)}
        return row


def _is_plain(item: Item) -> bool:
    """Whether the best token of its logits is all that the item asks for."""
    p = item.params
    return (
        p.temperature == 0.0
        and p.logprobs is None
        and p.prompt_logprobs is None
        and not p.logit_bias
        and not item.banned_token_ids
        and not p.bad_words_token_ids
        and not _has_penalties(p)
    )


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def _banned_ids(item: Item) -> list[int]:
    """Ids before min_tokens, and the last id of each bad word whose other ids end the output so far."""
    banned = list(item.banned_token_ids)
    for word in item.params.bad_words_token_ids:
        head = list(word[:-1])
        output = item.history[max(item.num_prompt_tokens, len(item.history) - len(head)) :]
        if output[-len(head) :] == head if head else True:
            banned.append(word[-1])
    return banned


def _report(item: Item, row: SamplingRow, result: SampledRow, output: ItemOutput) -> None:
    if row.num_top is None:
        output.sampled += [SampledToken(token_id, NAN) for token_id in result.tokens]
        return
    tokens = [
        SampledToken(token_id, logprob, rank, result.top)
        for token_id, logprob, rank in zip(result.tokens, result.logprobs, result.ranks, strict=True)
    ]
    if row.targets:
        output.prompt_logprobs += tokens
    else:
        output.sampled += tokens
