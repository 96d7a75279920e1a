"""The sampler: distributions, penalties, reports, and independence of the neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leafage.core.batch import Batch, Item, ItemOutput, Logits, Sample
from leafage.core.sampling_params import SamplingParams
from leafage.runtime.sampler import Sampler

VOCAB = 50


def make_item(
    params: SamplingParams, *, seq_id: int = 0, output: tuple[int, ...] = (), seed: int = 1, **kwargs
) -> Item:
    history = [3, 4, 5, *output]
    return Item(
        seq_id=seq_id,
        request_id=str(seq_id),
        block_table=[0],
        start=len(history) - 1,
        token_ids=history[-1:],
        write_from=0,
        logits=Logits.LAST,
        samples=[Sample(0, len(history), seed)],
        top_k_logprobs=params.logprobs or 0,
        params=params,
        history=history,
        num_prompt_tokens=3,
        **kwargs,
    )


def sample(items: list[Item], logits: np.ndarray, sampler: Sampler | None = None) -> list[ItemOutput]:
    sampler = sampler or Sampler(VOCAB)
    sampled = sampler.start(Batch(items=items))
    sampler.native.run(sampled.plan, np.array(logits, np.float32))
    return sampler.finish(sampled)


def draw(params: SamplingParams, logits: np.ndarray, **kwargs) -> int:
    return sample([make_item(params, **kwargs)], logits[None])[0].sampled[0].token_id


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, VOCAB).astype(np.float32)


def test_greedy_takes_the_lowest_id_of_equal_logits(logits):
    logits[[7, 9]] = 99.0
    assert draw(SamplingParams(temperature=0), logits) == 7


def test_draws_follow_the_distribution(logits):
    params = SamplingParams(temperature=1.5)
    counts = np.bincount([draw(params, logits, seed=s) for s in range(4000)], minlength=VOCAB)
    probs = np.exp(logits.astype(np.float64) / 1.5)
    probs /= probs.sum()
    expected = probs * 4000
    chi2 = (((counts - expected) ** 2) / np.maximum(expected, 1)).sum()
    assert chi2 < 100  # 49 degrees of freedom: P99.99 is 98


def test_truncations_keep_the_right_sets(logits):
    order = np.argsort(-logits)
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum()

    def support(**kwargs) -> set[int]:
        return {draw(SamplingParams(temperature=1.0, **kwargs), logits, seed=s) for s in range(1500)}

    assert support(top_k=3) == set(order[:3].tolist())
    kept = int(np.searchsorted(np.cumsum(probs[order]), 0.6)) + 1
    assert support(top_p=0.6) == set(order[:kept].tolist())
    assert support(min_p=0.3) == {int(i) for i in order if probs[i] >= 0.3 * probs.max()}
    assert support(top_p=1e-9) == {int(order[0])}


def test_penalties_and_bias_change_logits_as_documented(logits):
    logits[:] = 0
    logits[10], logits[11] = 5.0, 4.5
    greedy = {"temperature": 0.0}
    assert draw(SamplingParams(**greedy), logits, output=(10,)) == 10
    assert draw(SamplingParams(**greedy, presence_penalty=1.0), logits, output=(10,)) == 11
    assert draw(SamplingParams(**greedy, frequency_penalty=0.3), logits, output=(10, 10)) == 11
    assert draw(SamplingParams(**greedy, repetition_penalty=1.2), logits, output=(10,)) == 11
    assert draw(SamplingParams(**greedy, logit_bias={20: 9.0}), logits) == 20
    # The prompt counts for the repetition penalty, not for the others.
    logits[4] = 6.0
    assert draw(SamplingParams(**greedy, presence_penalty=2.0), logits) == 4
    assert draw(SamplingParams(**greedy, repetition_penalty=2.0), logits) == 10


def test_banned_ids_and_bad_words(logits):
    logits[10], logits[11] = 50.0, 40.0
    greedy = {"temperature": 0.0}
    assert draw(SamplingParams(**greedy), logits, banned_token_ids=frozenset([10])) == 11
    assert draw(SamplingParams(**greedy, bad_words_token_ids=((10,),)), logits) == 11
    two = SamplingParams(**greedy, bad_words_token_ids=((8, 10),))
    assert draw(two, logits, output=(8,)) == 11
    assert draw(two, logits, output=(9,)) == 10


def test_reported_logprobs(logits):
    params = SamplingParams(temperature=0.5, logprobs=3)
    result = sample([make_item(params)], logits[None])[0].sampled[0]
    log_probs = logits - (np.log(np.exp(logits.astype(np.float64)).sum()))
    assert math.isclose(result.logprob, log_probs[result.token_id], abs_tol=1e-5)
    assert [i for i, _ in result.top] == np.argsort(-logits, kind="stable")[:3].tolist()
    assert result.rank == 1 + int((logits > logits[result.token_id]).sum())


def test_s7_nan_row_is_an_error_of_that_row_only(logits):
    rows = np.stack([logits, np.full(VOCAB, np.nan, np.float32), logits])
    outputs = sample([make_item(SamplingParams(temperature=0), seq_id=i) for i in range(3)], rows)
    assert outputs[1].row_error is not None and not outputs[1].sampled
    assert outputs[0].sampled[0].token_id == outputs[2].sampled[0].token_id == int(logits.argmax())


def test_c06_neighbours_do_not_change_a_draw(logits):
    params = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.5)
    rows = np.random.default_rng(1).normal(0, 3, (8, VOCAB)).astype(np.float32)
    rows[5] = logits
    items = [make_item(params, seq_id=i, seed=i) for i in range(8)]
    alone = sample([make_item(params, seq_id=5, seed=5)], logits[None])[0].sampled[0].token_id
    assert sample(items, rows)[5].sampled[0].token_id == alone


def test_penalty_counts_follow_a_sequence_that_was_preempted(logits):
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    logits[:] = 0
    logits[10], logits[11] = 5.0, 4.2
    sampler = Sampler(VOCAB)

    def step(output: tuple[int, ...]) -> int:
        return sample([make_item(params, output=output)], logits[None], sampler)[0].sampled[0].token_id

    assert step(()) == 10
    assert step((10,)) == 10
    assert step((10, 10)) == 11
    sampler.release([0])
    assert step((10, 10, 11)) == 10
