"""PrefixWatch: prompts are looked at again only when something changed for them."""

from __future__ import annotations

import random

import pytest

from leafage.core.block_pool import BlockPool
from leafage.core.block_store import BlockStore
from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import Node, NodeIndex
from leafage.core.prefix_watch import PrefixWatch
from leafage.core.radix_tree import RadixTree
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams


class Side:
    """A store, its index and a watch of it."""

    def __init__(self, index: NodeIndex) -> None:
        self.index = index
        self.store = BlockStore(BlockPool(1000), index)
        self.watch = PrefixWatch(index, index.block_size)
        self.store.begin(1)

    def publish(self, tokens: list[int], salt: str = "") -> list[Node]:
        """Whole blocks of `tokens`, held by nobody but the index."""
        size = self.index.block_size
        nodes, fresh = [], []
        node = self.index.root(salt)
        for i in range(0, len(tokens) // size * size, size):
            key = tuple(tokens[i : i + size])
            child = self.index.child(node, key)
            if child is None:
                child = self.store.insert(node, key, self.store.take(), 1, pending=False)
                fresh.append(child)
            node = child
            nodes.append(node)
        for node in reversed(fresh):
            self.store.drop(node.block)
        return nodes

    def add(self, name: str, prompt: list[int], salt: str = "") -> Request:
        request = Request(name, prompt, SamplingParams(), cache_salt=salt)
        self.watch.add(request)
        return request


@pytest.fixture(params=[RadixTree, HashChain])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param(4))


def test_a_watcher_follows_insertions_and_evictions(side: Side) -> None:
    prompt = list(range(14))
    request = side.add("r", prompt)
    assert side.watch.matched(request) == 0
    side.publish(prompt)
    assert side.watch.changed() == [request] and side.watch.matched(request) == 12
    assert side.watch.changed() == []
    side.store.evict()
    assert side.watch.changed() == [request] and side.watch.matched(request) == 8
    side.store.evict()
    side.store.evict()
    assert side.watch.changed() == [request] and side.watch.matched(request) == 0
    side.publish(prompt[:8])
    assert side.watch.changed() == [request] and side.watch.matched(request) == 8


def test_nobody_else_is_looked_at(side: Side) -> None:
    side.publish(list(range(8)))
    for i in range(100):
        side.add(f"{i}", [*range(8), 50 + i, 0, 0, 0, 0])
    side.publish([*range(8), 50, 0, 0, 0])
    side.publish([*range(4), 9, 9, 9, 9])
    side.publish([8, 8, 8, 8])
    changed = side.watch.changed()
    assert [r.request_id for r in changed] == ["0"] and side.watch.num_looks == 1


def test_a_prompt_moves_once_however_much_of_it_goes(side: Side) -> None:
    prompt = list(range(400))
    side.publish(prompt)
    request = side.add("r", prompt)
    for _ in range(90):
        side.store.evict()
    assert side.watch.changed() == [request] and side.watch.matched(request) == 40
    assert side.watch.num_looks == 1


def test_what_comes_back_before_anyone_looks_is_no_change(side: Side) -> None:
    request = side.add("r", list(range(8)))
    side.publish(list(range(8)))
    side.watch.changed()
    side.store.evict()
    side.publish(list(range(8)))
    assert side.watch.changed() == [] and side.watch.matched(request) == 8


def test_salts_are_apart_and_roots_may_come_and_go(side: Side) -> None:
    here, there = side.add("here", [1, 2, 3, 4], "a"), side.add("there", [1, 2, 3, 4], "b")
    for _ in range(3):
        side.publish([1, 2, 3, 4], "a")
        assert side.watch.changed() == [here] and side.watch.matched(there) == 0
        side.store.evict()
        assert side.watch.changed() == [here] and not side.index._roots


def test_equal_hashes_wake_and_change_nothing() -> None:
    side = Side(HashChain(2, lambda value: 7))
    requests = [side.add(f"{i}", [i, i, i, i]) for i in range(5)]
    side.publish([3, 3, 9, 9])
    assert side.watch.changed() == [requests[3]] and side.watch.matched(requests[3]) == 2
    side.watch.check()


def test_removed_watchers_leave_nothing(side: Side) -> None:
    side.publish(list(range(8)))
    requests = [side.add(f"{i}", [*range(8), i, i, i, i]) for i in range(5)]
    side.store.evict()
    for request in requests:
        side.watch.remove(request)
    watch = side.watch
    assert not (watch._watchers or watch._standing or watch._wanting or watch._told)
    assert watch.changed() == []


@pytest.mark.parametrize("seed", range(20))
def test_random_events_leave_everyone_where_a_fresh_match_ends(side: Side, seed: int) -> None:
    rng = random.Random(seed)
    watched: list[Request] = []
    for i in range(300):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 24))]
        salt = rng.choice(["", "s"])
        roll = rng.random()
        if roll < 0.3:
            watched.append(side.add(f"{i}", tokens, salt))
        elif roll < 0.6:
            side.publish(tokens, salt)
        elif roll < 0.8 and side.index.num_idle:
            side.store.evict()
        elif roll < 0.9 and watched:
            side.watch.remove(watched.pop(rng.randrange(len(watched))))
        else:
            side.watch.changed()
        side.watch.check()
    side.watch.changed()
    for request in watched:
        nodes = side.index.match(request.cache_salt, request.prompt_token_ids, 1000)
        assert side.watch.matched(request) == 4 * len(nodes)


def test_check_sees_a_change_that_nobody_was_told_of(side: Side) -> None:
    side.add("r", [1, 2, 3, 4])
    side.index.watch = None
    side.publish([1, 2, 3, 4])
    with pytest.raises(AssertionError, match="was not told"):
        side.watch.check()
