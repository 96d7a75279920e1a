"""Contiguous allocators: first-fit and buddy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.arena import ARENAS, Buddy, FirstFit, Scattered


def test_first_fit_takes_the_lowest_hole_and_joins_neighbours() -> None:
    arena = FirstFit(100)
    runs = [arena.allocate(20) for _ in range(5)]
    assert runs == [range(i, i + 20) for i in range(0, 100, 20)] and arena.allocate(1) is None
    arena.free(range(20, 40))
    arena.free(range(60, 80))
    assert arena.free_runs() == [(20, 20), (60, 20)]
    assert (arena.num_free, arena.largest_free()) == (40, 20)
    assert arena.allocate(30) is None, "40 units are free, but not in a row"
    assert arena.allocate(5) == range(20, 25)
    arena.free(range(40, 60))
    assert arena.free_runs() == [(25, 55)]
    assert arena.allocate(30) == range(25, 55)


def test_buddy_rounds_up_and_merges_halves() -> None:
    arena = Buddy(16)
    a, b = arena.allocate(3), arena.allocate(4)
    assert (a, b) == (range(3), range(4, 8)) and arena.num_free == 8
    arena.free(range(3))
    assert arena.free_runs() == [(0, 4), (8, 8)], "the two fours are no buddies while one is in use"
    arena.free(range(4, 8))
    assert arena.free_runs() == [(0, 16)]


def test_a_buddy_arena_of_any_size_is_a_row_of_powers_of_two() -> None:
    arena = Buddy(748)
    assert arena.free_runs() == [(0, 512), (512, 128), (640, 64), (704, 32), (736, 8), (744, 4)]
    assert arena.capacity(128) == 5 and arena.capacity(100) == 5 and arena.capacity(129) == 2
    taken = [arena.allocate(4) for _ in range(187)]
    assert None not in taken and arena.num_free == 0
    for run in taken:
        assert run is not None
        arena.free(run)
    assert arena.free_runs() == [(0, 512), (512, 128), (640, 64), (704, 32), (736, 8), (744, 4)]


def test_scattered_units_lie_anywhere() -> None:
    arena = Scattered(8)
    first, second = arena.allocate(3), arena.allocate(3)
    assert (first, second, arena.largest_free()) == ([0, 1, 2], [3, 4, 5], 2)
    arena.free([0, 1, 2])
    assert arena.allocate(5) == [7, 6, 2, 1, 0][::-1] and arena.allocate(1) is None


@pytest.mark.parametrize("kind", ["first-fit", "buddy"])
@pytest.mark.parametrize(("start", "length"), [(0, 4), (4, 4), (2, 1), (6, 2)])
def test_freeing_what_is_free_is_our_bug(kind: str, start: int, length: int) -> None:
    arena = ARENAS[kind](16)
    arena.allocate(8)
    arena.free(range(8))
    with pytest.raises(AssertionError, match="free already"):
        arena.free(range(start, start + length))


@pytest.mark.parametrize("kind", ARENAS)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 200))
def test_runs_are_disjoint_and_nothing_is_lost(kind: str, seed: int, size: int) -> None:
    rng = random.Random(seed)
    arena = ARENAS[kind](size)
    live: list[Sequence[int]] = []
    for _ in range(60):
        if live and rng.random() < 0.5:
            arena.free(live.pop(rng.randrange(len(live))))
        else:
            length = rng.randint(1, rng.choice([3, size]))
            run = arena.allocate(length)
            if run is None:
                assert arena.largest_free() < arena.rounded(length)
            else:
                assert len(run) == length
                live.append(run)
        arena.check()
        owner = [0] * size
        for run in live:
            for unit in [*run, *(run[-1] + 1 + i for i in range(arena.rounded(len(run)) - len(run)))]:
                owner[unit] += 1
        for start, length in arena.free_runs():
            for unit in range(start, start + length):
                owner[unit] += 1
        assert owner == [1] * size
        assert arena.num_free == size - sum(arena.rounded(len(run)) for run in live)
    for run in live:
        arena.free(run)
    assert arena.free_runs() == ARENAS[kind](size).free_runs()


@pytest.mark.parametrize("kind", ARENAS)
@given(size=st.integers(1, 300), length=st.integers(1, 300))
def test_capacity_is_how_many_runs_the_empty_arena_gives(kind: str, size: int, length: int) -> None:
    arena = ARENAS[kind](size)
    count = 0
    while arena.allocate(length) is not None:
        count += 1
    assert arena.capacity(length) == count
