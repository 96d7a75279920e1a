"""The native sampler gives the tokens of its NumPy specification bit for bit, on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.kernels import _native
from leafage.kernels.native_sampling import NativeSampler, SamplingPlan, SamplingState
from leafage.kernels.reference_sampling import SampledRow, SamplingRow, distribution, exp, random_bits, sample
from tests.kernels.sampling_rows import plan_of, results_of, sample_natively

VARIANTS = _native.variants()


@pytest.fixture(params=VARIANTS, autouse=True)
def variant(request):
    before = _native.variant()
    _native.set_variant(request.param)
    yield request.param
    _native.set_variant(before)


def check(logits: np.ndarray, rows: list[SamplingRow], num_threads: int = 1) -> list[SampledRow]:
    before = logits.copy()
    got = sample_natively(logits, rows, num_threads=num_threads)
    np.testing.assert_array_equal(logits, before)  # edits are undone
    for one, expected in zip(got, sample(logits, rows), strict=True):
        assert (one.usable, one.tokens, one.ranks) == (expected.usable, expected.tokens, expected.ranks)
        assert [i for i, _ in one.top] == [i for i, _ in expected.top]
        np.testing.assert_allclose(one.logprobs, expected.logprobs, rtol=0, atol=1e-12)
        np.testing.assert_allclose([p for _, p in one.top], [p for _, p in expected.top], rtol=0, atol=1e-12)
    return got


def random_logits(seed: int, rows: int, vocab: int, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 255, 256, 257, 1000, 49152])
def test_all_truncations(vocab: int) -> None:
    logits = random_logits(vocab, 12, vocab)
    draws = [(s, 7) for s in range(6)]
    rows = [
        SamplingRow(draws, temperature=t, top_k=k, top_p=p, min_p=m, num_top=3)
        for t, k, p, m in (
            (1.0, 0, 1.0, 0.0),
            (0.7, 40, 1.0, 0.0),
            (1.3, 0, 0.9, 0.0),
            (1.0, 0, 1.0, 0.05),
            (0.8, 50, 0.95, 0.02),
            (100.0, 0, 0.999, 0.0),
            (100.0, 0, 1.0, 0.0),
            (1e-5, 0, 1.0, 0.0),
            (1.0, 1, 1.0, 0.0),
            (2.0, 5000, 0.5, 0.0),
            (1.0, 0, 1e-9, 0.0),
            (1.0, 7, 0.5, 1.0),
        )
    ]
    check(logits, rows, num_threads=2)


def odd_rows(vocab: int) -> np.ndarray:
    """Logits that a histogram over their range does not tell apart at once."""
    steps = np.arange(vocab, dtype=np.float64)
    rows = np.stack(
        [
            np.zeros(vocab),
            np.where(steps == 77, 3e38, steps * -1e-3),
            np.where(steps % 2 == 0, 3e38, -3e38),
            -(2.0 ** (-steps / vocab * 250)),  # ever closer to 0
            2.0 ** (-steps / vocab * 250),
            -steps * 1e-44,  # subnormal
            np.where(steps % 3 == 0, -np.inf, -steps * 1e-6),
            np.where(steps < 40, -steps, -np.inf),
            np.floor(steps / 300),
            np.where(steps % 500 == 499, 5.0, -0.0),
        ]
    )
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)


@pytest.mark.parametrize(
    "parameters",
    [
        {"top_k": 3},
        {"top_k": 50},
        {"top_k": 1000},
        {"top_p": 0.3},
        {"top_p": 0.9999},
        {"top_k": 700, "top_p": 0.99},
        {"min_p": 0.9, "top_p": 0.5},
        {"min_p": 1e-30, "top_k": 600},
    ],
)
def test_odd_rows(parameters: dict[str, float]) -> None:
    logits = odd_rows(3000)
    draws = [(s, 3) for s in range(8)]
    for temperature in (0.02, 1.0, 50.0):
        row = SamplingRow(draws, temperature=temperature, num_top=4, **parameters)  # type: ignore[arg-type]
        with np.errstate(over="ignore"):
            check(logits, [row] * len(logits))


@given(st.data())
def test_any_parameters(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 700))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    levels = data.draw(st.sampled_from([2, 10, 10**6]))  # few levels: many equal logits
    count = data.draw(st.integers(1, 5))
    logits = (rng.integers(-levels, levels, (count, vocab)) / levels * 8).astype(np.float32)
    number = st.floats(width=32, allow_nan=False)
    rows = [
        SamplingRow(
            draws=data.draw(
                st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), max_size=3)
            ),
            targets=data.draw(st.lists(st.integers(0, vocab - 1), max_size=2)),
            temperature=data.draw(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 3.0])),
            top_p=data.draw(st.sampled_from([1.0, 0.1, 0.5, 0.95])),
            min_p=data.draw(st.sampled_from([0.0, 0.0, 0.01, 0.3])),
            top_k=data.draw(st.sampled_from([0, 0, 1, 5, 100])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.5])),
            presence_penalty=data.draw(st.sampled_from([0.0, 1.5, -2.0])),
            frequency_penalty=data.draw(st.sampled_from([0.0, 0.1, -2.0])),
            num_top=data.draw(st.none() | st.integers(0, 20)),
            seen=data.draw(st.dictionaries(st.integers(0, vocab - 1), st.integers(0, 5), max_size=8)),
            bias=data.draw(
                st.dictionaries(st.integers(0, vocab - 1), number.filter(lambda x: abs(x) <= 100), max_size=4)
            ),
        )
        for _ in range(count)
    ]
    for row in rows:
        if vocab > 1 and data.draw(st.booleans()):
            row.bias = {**row.bias, data.draw(st.integers(0, vocab - 2)): -math.inf}
    check(logits, rows, num_threads=data.draw(st.integers(1, 3)))


def test_neighbours_and_threads_change_nothing() -> None:
    logits = random_logits(1, 33, 5000)
    rows = [
        SamplingRow([(s, 100 + s)], temperature=0.3 * (s % 4), top_p=0.9, top_k=s % 3 * 20, num_top=2)
        for s in range(33)
    ]
    together = check(logits, rows, num_threads=2)
    for i in range(33):
        assert sample_natively(logits[i : i + 1].copy(), [rows[i]]) == together[i : i + 1]


def test_a_plan_runs_in_slices() -> None:
    logits = random_logits(7, 9, 700)
    rows = [SamplingRow([(s, 5)] * (s % 3), temperature=1.0, num_top=s % 2 or None) for s in range(9)]
    plan = plan_of(rows, 700)
    sampler = NativeSampler(700)
    for first in (0, 4, 8):
        sampler.run(plan, logits[first : first + 4], first)
    assert results_of(plan, rows) == sample_natively(logits, rows)


def test_a_state_counts_what_it_sees() -> None:
    """In pieces or at once; the prompt counts for the repetition penalty alone."""
    logits = random_logits(8, 1, 40)
    row = SamplingRow(
        targets=list(range(40)),
        num_top=0,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        seen={3: 0, 4: 0, 5: 3, 6: 1},
    )
    state = SamplingState(40, 0.0, 1.0, 0.0, 0, 1.3, 0.5, 0.25, 0)
    state.see([3, 4, 5, 3], False)
    for ids in ([5], [], [6, 5], [5]):
        state.see(ids, True)
    plan = SamplingPlan(40, [state], [40], [0] * 40, [0] * 40, list(range(40)), [])
    NativeSampler(40).run(plan, logits)
    assert plan.logprobs == check(logits, [row])[0].logprobs


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = random_logits(2, 9, 1003)
    logits[:, 900] = logits[:, 31] = logits[:, 1002] = 50.0
    logits[4, 5] = 60.0
    logits[5] = -np.inf
    logits[6, 77] = np.nan
    logits[7, 3] = np.inf
    logits[8, :] = -np.inf
    logits[8, 1001] = -1e30
    logits[3] = -1.0
    logits[3, [200, 700]] = [-0.0, 0.0]
    got = check(logits, [SamplingRow([(0, 0)])] * 9, num_threads=2)
    assert [r.tokens for r in got] == [[31], [31], [31], [200], [5], [], [], [], [1001]]
    rows = [SamplingRow([(0, 0)], temperature=0.8, num_top=2)] * 9
    assert [r.usable for r in check(logits, rows)] == [True] * 5 + [False] * 3 + [True]


def test_banned_and_biased_tokens() -> None:
    logits = random_logits(3, 1, 300)
    best = int(logits.argmax())
    draws = [(s, 1) for s in range(200)]
    got = check(logits, [SamplingRow(draws, temperature=5.0, bias={best: -math.inf, 10: 100.0}, num_top=1)])
    assert set(got[0].tokens) == {10}
    got = check(logits, [SamplingRow(draws, temperature=5.0, bias={best: -math.inf})])
    assert best not in got[0].tokens and len(set(got[0].tokens)) > 50


def test_draws_follow_the_distribution() -> None:
    logits = random_logits(4, 1, 50, spread=1.0)
    draws = [(s, 9) for s in range(20000)]
    got = check(logits, [SamplingRow(draws, temperature=1.5)])
    expected = np.exp(logits[0].astype(np.float64) / 1.5)
    expected *= 20000 / expected.sum()
    counts = np.bincount(got[0].tokens, minlength=50)
    assert ((counts - expected) ** 2 / expected).sum() < 100  # 49 degrees of freedom: P99.99 is 98


def test_log_probabilities_against_float64() -> None:
    logits = random_logits(5, 1, 49152)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    order = np.argsort(-exact, kind="stable")
    got = check(logits, [SamplingRow(targets=[int(order[0]), int(order[999])], num_top=20)])[0]
    assert got.ranks == [1, 1000]
    np.testing.assert_allclose(got.logprobs, exact[order[[0, 999]]], atol=2e-6)
    assert [i for i, _ in got.top] == order[:20].tolist()
    np.testing.assert_allclose([p for _, p in got.top], exact[order[:20]], atol=2e-6)


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    probs = np.array([0.4, 0.1, 0.3, 0.2])
    logits = np.log(probs).astype(np.float32)
    kept = {
        p: distribution(logits, SamplingRow(temperature=1.0, top_p=p))[0].tolist()
        for p in (0.39, 0.41, 0.69, 0.71, 0.91)
    }
    assert kept == {0.39: [0], 0.41: [0, 2], 0.69: [0, 2], 0.71: [0, 2, 3], 0.91: [0, 1, 2, 3]}


def test_exponential_is_accurate() -> None:
    x = np.linspace(-80, 0, 200001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exp(x) - exact) / exact) < 3e-7


def test_exponential_never_decreases() -> None:
    """Truncation by logit is truncation by weight. Float by float around every change of the power of two,
    where the polynomial meets its neighbour; between them by samples."""
    for power in range(126):
        x = np.float32(-(power + 0.5) * math.log(2))
        around = (x.view(np.int32) + np.arange(-3000, 3000, dtype=np.int32)).view(np.float32)  # falling
        assert (np.diff(exp(around)) <= 0).all(), power
    assert (np.diff(exp(np.linspace(-88, 0, 3_000_001).astype(np.float32))) >= 0).all()


def test_random_bits_are_philox() -> None:
    # Random123's known answers of philox4x32-10 for counter and key 0.
    assert random_bits(0, 0) == 0x6627E8D5E169C58D


def test_wrong_arguments_are_refused() -> None:
    sampler = NativeSampler(10)
    logits = np.zeros((2, 10), np.float32)
    state = SamplingState(10)
    plan = SamplingPlan(10, [state, state], [1, 0], [0], [0], [-1], [])
    sampler.run(plan, logits)
    with pytest.raises(ValueError, match="expected logits of some of the plan's 2 rows, got rows 1 to 3"):
        sampler.run(plan, logits, 1)
    with pytest.raises(ValueError, match="expected writable logits of 10 columns"):
        sampler.run(plan, np.zeros((2, 11), np.float32))
    with pytest.raises(ValueError, match="expected logits as contiguous float32"):
        sampler.run(plan, logits.astype(np.float64))
    with pytest.raises(ValueError, match="expected a plan of 2 rows and logits of 11 columns"):
        NativeSampler(11).run(plan, np.zeros((2, 11), np.float32))
    for wrong, message in (
        ({"num_draws": [1]}, "expected 2 numbers of draws, got 1"),
        ({"num_draws": [1, -1]}, "draws >= 0, got 10 and -1"),
        ({"states": [state, SamplingState(11)]}, "expected states of 10 tokens"),
        ({"seeds": []}, "expected 1 seeds, got 0"),
        ({"positions": [1, 2]}, "expected 1 positions, got 2"),
        ({"targets": []}, "expected 1 targets, got 0"),
        ({"targets": [10]}, r"expected targets in \[-1, 10\), got 10"),
        ({"bias": [(0, 10, 1.0)]}, r"expected bias ids in \[0, 10\), got 10"),
        ({"bias": [(2, 1, 1.0)]}, r"expected rows of bias in order in \[0, 2\), got 2"),
        ({"bias": [(1, 1, 1.0), (0, 1, 1.0)]}, r"expected rows of bias in order in \[1, 2\), got 0"),
    ):
        right = {"states": [state, state], "num_draws": [1, 0], "seeds": [0], "positions": [0]}
        with pytest.raises(ValueError, match=message):
            SamplingPlan(**{"vocab_size": 10, **right, "targets": [-1], "bias": [], **wrong})
    for ids in ([-1], [3, 10]):
        with pytest.raises(ValueError, match=r"expected seen ids in \[0, 10\)"):
            state.see(ids, True)
