"""Draws tokens from logits. A row's result depends on its own logits, parameters, seed and position alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

from leafage.core.batch import Batch, Item, ItemOutput, SampledToken
from leafage.core.sampling_params import SamplingParams


class _History:
    """Token counts of one sequence for the penalties; rebuilt when the history is not an extension."""

    __slots__ = ("counts", "num_seen")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.num_seen = 0

    def extend(self, item: Item) -> Counter[int]:
        start = max(self.num_seen, item.num_prompt_tokens)
        if self.num_seen > len(item.history):
            self.counts.clear()
            start = item.num_prompt_tokens
        self.counts.update(item.history[start:])
        self.num_seen = len(item.history)
        return self.counts


class Sampler:
    """Sampling for all sequences of an executor; keeps penalty counts per sequence."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._histories: dict[int, _History] = {}

    def release(self, seq_ids: list[int]) -> None:
        for seq_id in seq_ids:
            self._histories.pop(seq_id, None)

    def process(
        self, batch: Batch, rows: list[tuple[int, int]], logits: np.ndarray, outputs: list[ItemOutput]
    ) -> None:
        """Fill `outputs` from logits [len(rows), vocab]; rows: (item index, offset in the item)."""
        best = logits.argmax(axis=1)
        for row, (index, offset) in enumerate(rows):
            item, output = batch.items[index], outputs[index]
            row_logits = logits[row]
            if not np.isfinite(row_logits[best[row]]):
                output.row_error = "the model's logits are not finite"
                continue
            position = item.start + offset + 1
            if item.params.prompt_logprobs is not None and position < item.num_prompt_tokens:
                output.prompt_logprobs.append(
                    _report(row_logits, item.history[position], item.params.prompt_logprobs)
                )
            if item.samples and offset == len(item.token_ids) - 1:
                self._sample(item, row_logits, int(best[row]), output)

    def _sample(self, item: Item, logits: np.ndarray, best: int, output: ItemOutput) -> None:
        params = item.params
        if _changes_logits(item):
            logits = self._penalized(item, logits.copy())
            best = int(logits.argmax())
        for sample in item.samples:
            token_id = best if params.greedy else _draw(logits, params, sample.seed, sample.position)
            if params.logprobs is None:
                output.sampled.append(SampledToken(token_id, float("nan")))
            else:
                output.sampled.append(_report(logits, token_id, item.top_k_logprobs))

    def _penalized(self, item: Item, logits: np.ndarray) -> np.ndarray:
        params = item.params
        if params.repetition_penalty != 1.0:
            seen = np.unique(np.asarray(item.history, dtype=np.int64))
            values = logits[seen]
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if params.presence_penalty or params.frequency_penalty:
            counts = self._histories.setdefault(item.seq_id, _History()).extend(item)
            if counts:
                ids = np.fromiter(counts.keys(), np.int64, len(counts))
                times = np.fromiter(counts.values(), np.float32, len(counts))
                logits[ids] -= np.float32(params.frequency_penalty) * times
                logits[ids] -= np.float32(params.presence_penalty)
        for token_id, bias in params.logit_bias.items():
            logits[token_id] += np.float32(bias)
        banned = _banned_ids(item)
        if banned:
            logits[banned] = -np.inf
        return logits


def _changes_logits(item: Item) -> bool:
    p = item.params
    return bool(
        p.repetition_penalty != 1.0
        or p.presence_penalty
        or p.frequency_penalty
        or p.logit_bias
        or item.banned_token_ids
        or p.bad_words_token_ids
    )


def _banned_ids(item: Item) -> list[int]:
    """Ids before min_tokens, and the last id of each bad word whose other ids end the output so far."""
    banned = list(item.banned_token_ids)
    output = item.history[item.num_prompt_tokens :] if item.params.bad_words_token_ids else []
    for word in item.params.bad_words_token_ids:
        head = list(word[:-1])
        if not head or output[-len(head) :] == head:
            banned.append(word[-1])
    return banned


def _report(logits: np.ndarray, token_id: int, num_top: int) -> SampledToken:
    """The token with its log-probability, its rank (1 is best) and the best `num_top` alternatives."""
    shifted = logits.astype(np.float64) - float(logits.max())
    log_sum = float(np.log(np.exp(shifted).sum()))
    rank = 1 + int((logits > logits[token_id]).sum())
    top: list[tuple[int, float]] = []
    if num_top > 0:
        ids = np.argpartition(-logits, num_top)[:num_top] if num_top < len(logits) else np.arange(len(logits))
        ids = ids[np.lexsort((ids, -logits[ids]))]
        top = [(int(i), float(shifted[i]) - log_sum) for i in ids]
    return SampledToken(token_id, float(shifted[token_id]) - log_sum, rank, top)


def _draw(logits: np.ndarray, params: SamplingParams, seed: int, position: int) -> int:
    """Temperature, then top_k, top_p, min_p; then the inverse of the cumulative distribution by token id."""
    scaled = logits.astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    keep = probs > 0
    if 0 < params.top_k < len(probs):
        kth = np.partition(probs, len(probs) - params.top_k)[len(probs) - params.top_k]
        keep &= probs >= kth
    if params.top_p < 1.0:
        ids = np.flatnonzero(keep)
        order = ids[np.lexsort((ids, -probs[ids]))]
        cumulative = np.cumsum(probs[order])
        # Keep a token while the mass before it is below top_p.
        before = cumulative - probs[order]
        keep = np.zeros_like(keep)
        keep[order[before < params.top_p * cumulative[-1]]] = True
    if params.min_p > 0.0:
        keep &= probs >= params.min_p  # the best token has probs 1
    ids = np.flatnonzero(keep)
    cumulative = np.cumsum(probs[ids])
    index = int(np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right"))
    return int(ids[min(index, len(ids) - 1)])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from Philox4x32-10 (Salmon et al., SC 2011) keyed by seed, counted by position."""
    mask = 0xFFFFFFFF
    k0, k1 = seed & mask, (seed >> 32) & mask
    c0, c1, c2, c3 = position & mask, (position >> 32) & mask, 0, 0
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return ((c0 << 21) | (c1 >> 11)) * 2.0**-53
