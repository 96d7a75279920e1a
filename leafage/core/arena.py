"""Allocation of runs of units, as systems reserve them that give a request all its memory at once.

Three allocators with one interface. The units of a run are consecutive with two of them: `FirstFit` leaves
holes that no request fits (external fragmentation); `Buddy` rounds every run up to a power of two (internal
fragmentation) and merges freed halves at once. After Knuth, "The Art of Computer Programming", volume 1,
section 2.5. With `Scattered` they lie anywhere: what is left of a reservation's cost is the reservation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol


class Arena(Protocol):
    """Runs of units out of 0 .. size - 1. What is free is known, never what a run holds."""

    size: int

    @property
    def num_free(self) -> int:
        """Free units, wherever they lie."""
        ...

    def rounded(self, length: int) -> int:
        """The units that a run of `length` really takes."""
        ...

    def capacity(self, length: int) -> int:
        """How many runs of `length` the empty arena holds."""
        ...

    def allocate(self, length: int) -> Sequence[int] | None:
        """The units of a run, None when there is none."""
        ...

    def free(self, run: Sequence[int]) -> None:
        """Give back a run, as it was given out."""
        ...

    def largest_free(self) -> int:
        """The longest run that can be had now."""
        ...

    def free_runs(self) -> list[tuple[int, int]]:
        """(start, length) of the free units, by start."""
        ...

    def check(self) -> None:
        """Assert what must hold of the free runs. For tests."""
        ...


class FirstFit:
    """The lowest hole that is large enough; neighbouring holes are one.

    Allocating and freeing are linear in the number of holes.
    """

    def __init__(self, size: int) -> None:
        self.size = self.num_free = size
        self._starts = [0]
        self._lengths = [size]

    def rounded(self, length: int) -> int:
        return length

    def capacity(self, length: int) -> int:
        return self.size // length

    def allocate(self, length: int) -> range | None:
        assert length > 0, "a run has at least one unit"
        for i, hole in enumerate(self._lengths):
            if hole >= length:
                start = self._starts[i]
                if hole == length:
                    del self._starts[i], self._lengths[i]
                else:
                    self._starts[i] = start + length
                    self._lengths[i] = hole - length
                self.num_free -= length
                return range(start, start + length)
        return None

    def free(self, run: Sequence[int]) -> None:
        start, length = run[0], len(run)
        starts, lengths = self._starts, self._lengths
        i = bisect_left(starts, start)
        joins_next = i < len(starts) and start + length == starts[i]
        joins_previous = i > 0 and starts[i - 1] + lengths[i - 1] == start
        assert i == len(starts) or start + length <= starts[i], f"units from {start} are free already"
        assert i == 0 or starts[i - 1] + lengths[i - 1] <= start, f"units from {start} are free already"
        if joins_previous and joins_next:
            lengths[i - 1] += length + lengths[i]
            del starts[i], lengths[i]
        elif joins_previous:
            lengths[i - 1] += length
        elif joins_next:
            starts[i] = start
            lengths[i] += length
        else:
            starts.insert(i, start)
            lengths.insert(i, length)
        self.num_free += length

    def largest_free(self) -> int:
        return max(self._lengths, default=0)

    def free_runs(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._lengths, strict=True))

    def check(self) -> None:
        end = -1
        for start, length in self.free_runs():
            assert length > 0, "a hole is empty"
            assert start > end, f"the holes before and at {start} overlap or should be one"
            end = start + length
        assert end <= self.size, "a hole ends outside the arena"
        assert sum(self._lengths) == self.num_free, "num_free is wrong"


class Buddy:
    """Runs of 2^k units at multiples of 2^k; two free halves of one run are that run again.

    An arena whose size is no power of two is a row of them, largest first, that never merge.
    """

    def __init__(self, size: int) -> None:
        self.size = self.num_free = size
        self._roots: list[tuple[int, int]] = []  # (start, order)
        self._free: list[set[int]] = [set() for _ in range(size.bit_length())]  # starts by order
        start = 0
        for order in reversed(range(size.bit_length())):
            if size >> order & 1:
                self._roots.append((start, order))
                self._free[order].add(start)
                start += 1 << order

    def rounded(self, length: int) -> int:
        return 1 << _order(length)

    def capacity(self, length: int) -> int:
        return sum(1 << order >> _order(length) for _, order in self._roots)

    def allocate(self, length: int) -> range | None:
        wanted = _order(length)
        for order in range(wanted, len(self._free)):
            if self._free[order]:
                start = min(self._free[order])
                self._free[order].remove(start)
                while order > wanted:  # halve it and keep the lower half
                    order -= 1
                    self._free[order].add(start + (1 << order))
                self.num_free -= 1 << wanted
                return range(start, start + length)
        return None

    def free(self, run: Sequence[int]) -> None:
        start, order = run[0], _order(len(run))
        assert not any(
            low <= start < low + length or start <= low < start + (1 << order)
            for low, length in self.free_runs()
        ), f"units from {start} are free already"
        self.num_free += 1 << order
        # The buddy of a whole root is never free as one run: the root behind it is smaller.
        while start ^ (1 << order) in self._free[order]:
            self._free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)

    def largest_free(self) -> int:
        return max((1 << order for order, starts in enumerate(self._free) if starts), default=0)

    def free_runs(self) -> list[tuple[int, int]]:
        return sorted((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)

    def check(self) -> None:
        end = 0
        for start, length in self.free_runs():
            assert start >= end, f"free runs overlap at {start}"
            assert start % length == 0, f"the free run at {start} is not at a multiple of its {length} units"
            assert start ^ length not in self._free[length.bit_length() - 1], "two free buddies are not one"
            end = start + length
        assert end <= self.size, "a free run ends outside the arena"
        assert sum(length for _, length in self.free_runs()) == self.num_free, "num_free is wrong"


def _order(length: int) -> int:
    """k of the smallest 2^k >= length."""
    assert length > 0, "a run has at least one unit"
    return (length - 1).bit_length()


class Scattered:
    """Any free units; those freed last go first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(reversed(range(size)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def rounded(self, length: int) -> int:
        return length

    def capacity(self, length: int) -> int:
        return self.size // length

    def allocate(self, length: int) -> list[int] | None:
        assert length > 0, "a run has at least one unit"
        if length > len(self._free):
            return None
        run = self._free[-length:]
        run.reverse()
        del self._free[-length:]
        return run

    def free(self, run: Sequence[int]) -> None:
        self._free.extend(reversed(run))

    def largest_free(self) -> int:
        return len(self._free)

    def free_runs(self) -> list[tuple[int, int]]:
        return [(unit, 1) for unit in sorted(self._free)]

    def check(self) -> None:
        assert len(set(self._free)) == len(self._free), "a unit is free twice"


ARENAS: dict[str, Callable[[int], Arena]] = {"first-fit": FirstFit, "buddy": Buddy, "scattered": Scattered}
