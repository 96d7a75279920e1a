"""Pins: what they hold, for how long, and what they may never do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leafage.core.pins import PrefixPin
from leafage.core.request import FinishKind
from leafage.errors import (
    ExecutorError,
    InvalidParameterError,
    PinRefusedError,
    RequestError,
    RequestTooLargeError,
    UnsupportedError,
)
from tests.core.toy import Loop

SIZE = 4
PREFIX = list(range(10))  # two blocks and a half


def loop_of(num_blocks: int = 32, max_pinned_blocks: int = 12, **options: Any) -> Loop:
    return Loop(num_blocks, SIZE, max_pinned_blocks=max_pinned_blocks, **options)


def pinned(loop: Loop, prefix: list[int] | None = None, **options: Any) -> PrefixPin:
    """A pin that holds."""
    pin = loop.pin(PREFIX if prefix is None else prefix, **options)
    loop.run()
    assert pin.held and pin.error is None
    return pin


def cached(loop: Loop, prompt: list[int], **options: Any) -> int:
    """Prompt tokens that a request finds."""
    request_id = loop.add(prompt, max_tokens=1, **options)
    loop.run()
    loop.assert_undisturbed(request_id)
    return loop.answers[request_id, 0].num_cached


def press(loop: Loop) -> None:
    """Requests that need every block they can get: whatever can be evicted is."""
    evicted = loop.kv.counters.evicted_blocks
    room = (loop.kv.num_blocks - loop.kv.max_pinned_blocks) * SIZE
    for first in range(100, 104):
        loop.add([first] * (room - 20), max_tokens=20)
    loop.run()
    assert loop.kv.counters.evicted_blocks > evicted


def test_an_uncomputed_prefix_is_computed_without_output() -> None:
    loop = loop_of()
    pin = loop.pin(PREFIX)
    assert not pin.held and loop.scheduler.num_waiting == 1
    assert loop.step() == [] and not loop.scheduler.has_unfinished
    assert pin.held and [len(node.key) for node in pin.nodes] == [4, 4, 2]
    assert (loop.kv.pins.num_blocks, loop.kv.num_active, loop.kv.num_cached) == (3, 3, 0)
    counters = loop.scheduler.counters
    assert (counters.prompt_tokens, counters.generated_tokens) == (10, 0)
    assert not counters.finished and counters.prefix_queries == 0, "it is nobody's request"
    assert cached(loop, [*PREFIX, 77]) == 10, "also the partly filled block"


def test_a_computed_prefix_is_held_at_once() -> None:
    loop = loop_of()
    loop.add([*PREFIX, 50, 51], max_tokens=1)
    loop.run()
    steps = loop.scheduler.counters.steps
    pin = loop.pin(PREFIX)
    assert pin.held and loop.scheduler.counters.steps == steps
    assert len(pin.nodes) == 3 and pin.nodes[-1].key[:2] == (8, 9), "in the block that goes on"


def test_pressure_never_evicts_a_pinned_block() -> None:
    loop = loop_of()
    pin = pinned(loop)
    blocks = [node.block for node in pin.nodes]
    press(loop)
    assert [node.block for node in pin.nodes] == blocks
    assert cached(loop, [*PREFIX, 77]) == 10
    loop.unpin(pin)
    press(loop)
    assert cached(loop, [*PREFIX, 77]) == 0, "a released prefix is ordinary cache"


def test_resetting_the_cache_leaves_pins_alone() -> None:
    loop = loop_of()
    pin = pinned(loop)
    loop.add([60] * 9, max_tokens=1)
    loop.run()
    assert loop.kv.reset_prefix_cache() == 3
    assert cached(loop, [*PREFIX, 77]) == 10
    assert loop.unpin(pin) and not loop.unpin(pin)
    loop.kv.reset_prefix_cache()
    assert loop.kv.num_free == loop.kv.num_blocks


def test_a_pinned_leaf_stays_when_a_sibling_extends_it() -> None:
    loop = loop_of()
    pin = pinned(loop)
    leaf = pin.nodes[-1]
    assert cached(loop, [*PREFIX, 50, 51, 52]) == 10
    assert pin.nodes[-1] is leaf and not leaf.detached
    loop.kv.reset_prefix_cache()  # the sibling goes, the leaf stays
    assert cached(loop, [*PREFIX, 60, 61, 62]) == 10
    loop.unpin(pin)
    assert leaf.detached, "no use any more: its sibling has all of it"
    assert cached(loop, [*PREFIX, 70, 71, 72]) == 10


def test_a_pinned_leaf_without_a_sibling_stays_as_cache() -> None:
    loop = loop_of()
    pin = pinned(loop)
    leaf = pin.nodes[-1]
    loop.unpin(pin)
    assert not leaf.detached and loop.kv.num_cached == 3


def test_pins_share_blocks() -> None:
    loop = loop_of(max_pinned_blocks=4)
    short = pinned(loop, PREFIX[:8])
    long = pinned(loop, [*PREFIX, 10])
    twin = pinned(loop, PREFIX[:8])
    assert loop.kv.pins.num_blocks == 3 and short.nodes == long.nodes[:2] == twin.nodes
    loop.unpin(short)
    assert loop.kv.pins.num_blocks == 3
    loop.unpin(long)
    assert loop.kv.pins.num_blocks == 2, "the twin holds them still"
    press(loop)
    assert cached(loop, [*PREFIX, 77]) >= 8
    loop.unpin(twin)
    assert loop.kv.pins.num_blocks == loop.kv.num_active == 0


def test_a_prefix_that_a_running_request_is_computing() -> None:
    loop = loop_of(max_num_batched_tokens=6)
    request_id = loop.add([*PREFIX, *range(20, 30)], max_tokens=30)
    loop.step()
    pin = loop.pin(PREFIX)
    rows = loop.executor.num_prompt_rows
    while not pin.held:
        loop.step()
    assert loop.executor.num_prompt_rows - rows <= 20, "what both need is computed once"
    assert loop.scheduler.roster.get(request_id) is not None
    loop.unpin(pin)  # while the request uses the blocks
    loop.run()
    loop.assert_undisturbed(request_id)


def test_requests_end_and_go_on_beside_their_pin() -> None:
    """Aborted and preempted users of pinned blocks leave them alone."""
    loop = loop_of(num_blocks=16, max_pinned_blocks=4)
    pin = pinned(loop)
    ids = [loop.add([*PREFIX, 40 + i], max_tokens=28) for i in range(4)]
    for _ in range(4):
        loop.step()
    loop.scheduler.abort(ids[0])
    loop.run()
    assert loop.scheduler.counters.preemptions > 0
    for request_id in ids[1:]:
        loop.assert_undisturbed(request_id)
    assert pin.held and loop.kv.num_active == 3


def test_salts_do_not_share_pins() -> None:
    loop = loop_of()
    pinned(loop, salt="a")
    assert cached(loop, [*PREFIX, 77]) == 0
    assert cached(loop, [*PREFIX, 77], salt="a") == 10
    assert cached(loop, [*PREFIX, 77], salt="b") == 0


def test_beyond_the_share_a_pin_is_refused_when_asked_for() -> None:
    loop = loop_of(max_pinned_blocks=4)
    first = loop.pin(PREFIX)  # not computed yet, and it counts
    expected = r"got '5 blocks, 2 of them for this prefix'; limit: 4 blocks. Release others"
    with pytest.raises(PinRefusedError, match=expected):
        loop.pin([*PREFIX[:8], *range(50, 56)])  # two blocks in common, and the half one of each
    loop.run()
    with pytest.raises(PinRefusedError):
        loop.pin([1, 2, 3, 4, 5])
    loop.pin([1, 2, 3, 4])
    loop.unpin(first)
    loop.pin([*PREFIX, 50])
    loop.run()
    assert loop.kv.pins.num_blocks == 4
    with pytest.raises(PinRefusedError, match="limit: 0 blocks"):
        loop_of(max_pinned_blocks=0).pin([1])


def test_what_no_request_could_use_is_refused() -> None:
    loop = loop_of(max_model_len=8)
    with pytest.raises(RequestTooLargeError, match="max_model_len is 8"):
        loop.pin(PREFIX)
    with pytest.raises(InvalidParameterError, match="the prefix is empty"):
        loop.pin([])
    assert len(loop.kv.pins) == 0 and not loop.scheduler.has_unfinished


@pytest.mark.parametrize("options", [{"prefix_index": "none"}, {"reservation": "max", "max_model_len": 64}])
def test_without_a_cache_nothing_is_pinned(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"pins need a prefix index.*'radix'"):
        loop_of(**options).pin(PREFIX)


def test_a_hash_chain_pins_whole_blocks() -> None:
    loop = loop_of(prefix_index="hash_chain")
    pin = pinned(loop)
    assert pin.token_ids == PREFIX[:8] and len(pin.nodes) == 2
    press(loop)
    assert cached(loop, [*PREFIX, 77]) == 8
    with pytest.raises(InvalidParameterError, match=r"got '3 tokens'; limit: at least 4"):
        loop.pin([1, 2, 3])


def test_released_before_it_is_computed() -> None:
    loop = loop_of(max_num_batched_tokens=4)
    pin = loop.pin(PREFIX)
    loop.step()
    assert loop.unpin(pin) and not loop.scheduler.has_unfinished
    assert not pin.held and loop.kv.num_active == 0 and loop.kv.pins.news == []


def test_an_aborted_or_failed_request_ends_its_pin_with_the_error() -> None:
    loop = loop_of()
    aborted = loop.pin(PREFIX)
    loop.scheduler.abort(aborted.pin_id)
    failed = loop.pin(PREFIX)
    batch = loop.scheduler.schedule()
    assert loop.scheduler.fail(batch, ExecutorError("broken")) == []
    spoilt = loop.pin(PREFIX)
    loop.executor.row_errors = {spoilt.pin_id: "NaN"}
    loop.run()
    assert isinstance(aborted.error, RequestError) and "aborted" in str(aborted.error)
    assert isinstance(failed.error, ExecutorError) and isinstance(spoilt.error, RequestError)
    assert loop.kv.pins.news == [aborted, failed, spoilt] and len(loop.kv.pins) == 0
    assert loop.kv.num_active == 0


def test_what_is_discarded_under_a_pin_is_computed_again() -> None:
    """The request that computed the prefix turns out bad much later: its K/V cannot be trusted."""
    loop = loop_of()
    bad = loop.add([*PREFIX, 50], max_tokens=20)
    loop.step()
    pin = loop.pin(PREFIX[:8])
    assert pin.held
    loop.executor.row_errors = {bad: "NaN"}
    loop.step()
    loop.executor.row_errors = {}
    assert not pin.held and loop.scheduler.has_unfinished
    rows = loop.executor.num_prompt_rows
    loop.run()
    assert pin.held and loop.executor.num_prompt_rows == rows + 8
    assert loop.answers[bad, 0].finish.kind is FinishKind.ERROR  # type: ignore[union-attr]


def test_a_pin_whose_prefix_was_discarded_meanwhile_starts_over() -> None:
    """It attached blocks in an earlier step, which left the index before it was done."""
    loop = loop_of(max_num_batched_tokens=8)
    bad = loop.add(PREFIX[:8], max_tokens=20)
    loop.step()
    pin = loop.pin([*PREFIX, *range(50, 62)])
    loop.step()
    assert not pin.held
    loop.executor.row_errors = {bad: "NaN"}
    loop.step()
    loop.executor.row_errors = {}
    loop.run()
    assert pin.held and len(pin.nodes) == 6


def test_usage_tells_pinned_slots_apart() -> None:
    loop = loop_of()
    pin = pinned(loop)
    usage = loop.kv.usage(loop.scheduler.roster.running)
    assert (usage.pinned, usage.stored, usage.cached) == (12, 0, 0)
    loop.add([*PREFIX, 77], max_tokens=4)
    loop.step()
    usage = loop.kv.usage(loop.scheduler.roster.running)
    assert (usage.pinned, usage.stored) == (4, 11), "two blocks are shared, the third was copied"
    loop.run()
    loop.unpin(pin)
    assert loop.kv.usage([]).pinned == 0


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_and_every_end(seed: int) -> None:
    """Pins of random prefixes of one text, in a pool that is always full, released at random."""
    rng = random.Random(seed)
    loop = loop_of(num_blocks=24, max_pinned_blocks=10, max_num_batched_tokens=7)
    text = [rng.randint(0, 2) for _ in range(30)]
    pins: list[PrefixPin] = []
    for _ in range(60):
        prefix = text[: rng.randint(1, len(text))]
        loop.add([*prefix, rng.randint(3, 9)], max_tokens=rng.randint(1, 10))
        try:
            pins.append(loop.pin(prefix))
        except PinRefusedError:
            assert loop.unpin(pins.pop(rng.randrange(len(pins))))
        for _ in range(rng.randint(0, 6)):
            loop.step()
    loop.run()
    for request_id in loop.requests:
        loop.assert_undisturbed(request_id)
    for pin in pins:
        assert pin.held and cached(loop, [*pin.token_ids, 99]) >= len(pin.token_ids)
        assert loop.unpin(pin)
    assert loop.kv.num_active == 0
