"""The list of demos."""

from __future__ import annotations

from leafage.sim.reproduce.registry import DEMOS


def test_ids_are_unique() -> None:
    ids = [demo.id for demo in DEMOS]
    assert len(set(ids)) == len(ids)


def test_every_demo_covers_something_of_the_list() -> None:
    assert all(demo.covers for demo in DEMOS)
