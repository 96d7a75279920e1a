from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.sim.workload import FreshTokens, TokenRuns

RUNS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 6)).map(lambda r: range(r[0], r[0] + r[1])))


@given(RUNS, RUNS, st.slices(12))
def test_token_runs_are_a_sequence_like_a_list(first: list[range], second: list[range], part: slice) -> None:
    runs = TokenRuns(TokenRuns(*first), *second)
    plain = [token for run in first + second for token in run]
    assert list(runs) == plain and len(runs) == len(plain) and runs == plain and runs[part] == plain[part]
    assert [runs[i] for i in range(-len(plain), len(plain))] == plain * 2
    for outside in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            runs[outside]


def test_token_runs_take_the_memory_of_their_parts() -> None:
    runs = TokenRuns(range(1_000_000), range(5, 9))
    assert len(runs) == 1_000_004 and len(runs.runs) == 2 and sys.getsizeof(runs) < 100
    assert runs != TokenRuns(range(1_000_000), range(5, 8)) and runs != TokenRuns(range(1_000_004))


def test_fresh_tokens_never_repeat() -> None:
    tokens = FreshTokens()
    taken = [token for count in (3, 0, 2, 5) for token in tokens.take(count)]
    assert len(set(taken)) == len(taken) == 10
