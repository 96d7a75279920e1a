"""Where the slots are: stored, reserved, lost; against a count of every slot, in random worlds."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from leafage.core.request import Request, Sequence
from leafage.core.sampling_params import SamplingParams
from leafage.core.usage import KINDS, Duplicates, Usage, UsageSeconds, num_computable
from tests.core.toy import Loop
from tests.core.world import World


def slots_of(seq: Sequence, size: int, num_tokens: int) -> set[int]:
    return {seq.block_table[p // size] * size + p % size for p in range(num_tokens)}


def rounded(kv: Any, run: Iterable[int]) -> list[int]:
    """The blocks of a run, and those behind it that the allocator gave away with them."""
    blocks = list(run)
    return blocks + [blocks[-1] + 1 + i for i in range(kv._arena.rounded(len(blocks)) - len(blocks))]


def counted(loop: Loop) -> Usage:
    """The same, slot by slot and block by block."""
    kv: Any = loop.kv
    size = kv.block_size
    stored: set[int] = set()
    computable: set[int] = set()
    held: set[int] = set()
    content: dict[int, tuple[str, tuple[int, ...]]] = {}
    for request in loop.scheduler.roster.running:
        longest = len(request.prompt_token_ids) + request.max_tokens - 1
        runs = getattr(kv, "_runs", None)
        for run in getattr(kv, "_spare", {}).get(request.request_id, ()):
            blocks = rounded(kv, run)
            held.update(block * size + slot for block in blocks for slot in range(size))
            computable.update(blocks[p // size] * size + p % size for p in range(longest))
        for seq in request.live:
            written = max(seq.num_planned, seq.write_from)
            stored |= slots_of(seq, size, written)
            blocks = seq.block_table
            if runs is not None:
                blocks = rounded(kv, runs[seq.seq_id])
            for index, block in enumerate(blocks):
                held.update(range(block * size, (block + 1) * size))
                usable = min(max(longest - index * size, 0), size)
                computable.update(range(block * size, block * size + usable))
            left = seq.index_node is not None and seq.index_node.detached and kv.duplicates is None
            for index in range(0 if left else seq.num_planned // size):  # published no more since a failure
                prefix = (seq.cache_salt, tuple(seq.tokens[: (index + 1) * size]))
                content[seq.block_table[index]] = prefix
    assert stored <= computable <= held
    cached = set()
    pinned = 0
    if not hasattr(kv, "_arena"):
        cached = {node.block for node in kv.index.nodes()}
        cached |= {block for copy in kv.copies for block in (copy.src, copy.dst)}
        cached -= {slot // size for slot in held}
        pinned = sum(block in cached for block in {node.block for pin in kv.pins for node in pin.nodes})
    free = kv.num_blocks * size - len(held) - len(cached) * size
    usable_free = free
    if hasattr(kv, "_arena"):
        taken = {slot // size for slot in held}
        usable_free = kv._arena.largest_free() * size
        assert all(b not in taken for s, n in kv._arena.free_runs() for b in range(s, s + n))
    return Usage(
        stored=len(stored),
        reservation=len(computable - stored),
        internal=len(held - computable),
        external=free - usable_free,
        cached=(len(cached) - pinned) * size,
        pinned=pinned * size,
        free=usable_free,
        duplicates=(len(content) - len(set(content.values()))) * size,
    )


def assert_usage(loop: Loop) -> Usage:
    usage = loop.kv.usage(loop.scheduler.roster.running)
    assert usage == counted(loop)
    assert sum(getattr(usage, kind) for kind in KINDS[:-1]) == loop.kv.num_blocks * loop.kv.block_size
    return usage


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefix_index": "none"},
        {"reservation": "max"},
        {"reservation": "pow2", "allocator": "buddy"},
        {"reservation": "oracle"},
        {"reservation": "oracle", "allocator": "scattered"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_every_slot_is_counted_once(options: dict[str, str], seed: int) -> None:
    """After each schedule of a random world, with gangs, aborts, failures and preemptions."""
    world = World(random.Random(200 + seed), **options)
    schedule = world.loop.scheduler.schedule
    seen = Usage()

    def watched() -> Any:
        batch = schedule()
        usage = assert_usage(world.loop)
        for kind in KINDS:
            setattr(seen, kind, getattr(seen, kind) + getattr(usage, kind))
        return batch

    world.loop.scheduler.schedule = watched  # type: ignore[method-assign]
    world.run(80)
    assert seen.pinned > 0 or options or not world.num_pinned
    assert seen.stored > 0 or not world.loop.num_added, "and there was something to count"


def test_r1_4_each_waste_of_a_reservation() -> None:
    """One request of 10 prompt and 7 output tokens; Max reserves 32, the buddy allocator nothing more."""
    loop = Loop(24, 4, max_model_len=32, reservation="max", allocator="buddy")
    loop.add(range(10), max_tokens=7)
    loop.step()
    loop.scheduler.schedule()
    usage = assert_usage(loop)
    assert usage == Usage(stored=11, reservation=5, internal=16, external=0, free=64, cached=0)


def test_external_fragmentation_is_what_lies_outside_the_longest_free_run() -> None:
    loop = Loop(10, 4, max_model_len=40, reservation="oracle")
    for i, length in enumerate((8, 8, 8, 8)):
        loop.add([i], f"r{i}", max_tokens=length)
    loop.step()
    assert loop.kv.usage(loop.scheduler.roster.running).external == 0
    loop.scheduler.abort("r1")
    usage = assert_usage(loop)
    assert (usage.external, usage.free) == (8, 8)


def test_paged_wastes_less_than_a_block_a_sequence_and_nothing_externally() -> None:
    """R3-1."""
    loop = Loop(200, 16, max_model_len=512)
    rng = random.Random(0)
    for i in range(12):
        loop.add([i] * rng.randint(1, 90), max_tokens=rng.randint(2, 60))
    while loop.scheduler.has_unfinished:
        loop.scheduler.schedule()
        usage = assert_usage(loop)
        running = loop.scheduler.roster.running
        unwritten = usage.reservation + usage.internal
        assert unwritten < 16 * len(running) and usage.external == usage.duplicates == 0
        batch = loop.scheduler._in_flight
        assert batch is not None
        loop.scheduler.update(batch, loop.executor.execute(batch))


@pytest.mark.parametrize(("reservation", "duplicates"), [("oracle", 3 * 32 + 64), (None, 0)])
def test_shareable_duplicates(reservation: str | None, duplicates: int) -> None:
    """A gang of 3 with a prompt of 35 and two requests that share 32 of it: 4 copies too many of 2 blocks."""
    loop = Loop(64, 16, max_model_len=64, reservation=reservation)
    loop.add(range(35), n=3, max_tokens=9, temperature=1.0, seed=1)
    loop.step()
    loop.add([*range(32), 77], max_tokens=9)
    loop.add([*range(32), 88], max_tokens=9)
    loop.add([*range(32), 99], max_tokens=9, salt="another tenant")
    loop.step()
    loop.scheduler.schedule()
    assert assert_usage(loop).duplicates == (128 if reservation else 0) == duplicates - 32 * bool(reservation)


def test_e1_twenty_paged_requests_waste_at_most_15_slots_each() -> None:
    """OPT-13B: 800 KiB a token, 11,968 tokens; 300 slots are 234 MiB, 2.5 % of the cache."""
    loop = Loop(748, 16, max_model_len=2048, max_num_batched_tokens=20_000)
    assert 16 * 800 * 1024 / 2**20 == 12.5 and 11_968 // 16 == 748
    for i in range(20):
        loop.add([i] * 496, max_tokens=2)  # 497 slots: one in the last block
    loop.step()
    loop.scheduler.schedule()
    usage = assert_usage(loop)
    assert (usage.internal, usage.reservation) == (300, 0)
    assert round(300 * 800 / 1024) == 234
    assert round(100 * 300 / 11_968, 1) == 2.5


def test_e1_max_reservation_wastes_1548_slots_on_a_request_of_500() -> None:
    loop = Loop(748, 16, max_model_len=2048, reservation="max", max_num_batched_tokens=20_000)
    loop.add([1] * 499, max_tokens=2)  # the 500th token's K/V is computed in its last step
    loop.step()
    loop.scheduler.schedule()
    usage = assert_usage(loop)
    assert (usage.stored, usage.reservation, usage.internal) == (500, 0, 1548)


def test_slot_seconds_weigh_usage_by_time() -> None:
    sums = UsageSeconds()
    sums.add(Usage(1, 2, 3, 4, 5, 6, 7, 8), 2, 0.5)
    sums.add(Usage(10, 20, 30, 40, 50, 60, 70, 80), 4, 2.0)
    assert sums.seconds == 2.5 and sums.seq_seconds == 9.0
    assert sums.slot_seconds == [20.5, 41.0, 61.5, 82.0, 102.5, 123.0, 143.5, 164.0]


def test_duplicates_are_forgotten_with_their_sequences() -> None:
    duplicates = Duplicates(2)
    seqs = [Sequence(i, 0, 0, [1, 2, 3, 4, i], 5, block_table=list(range(9))[3 * i :]) for i in range(3)]
    for seq in seqs:
        duplicates.extend(seq, 5)
    assert duplicates.num_blocks == 4
    duplicates.remove(seqs[0])
    assert duplicates.num_blocks == 2
    for seq in seqs:
        duplicates.remove(seq)  # a second time is harmless: it holds nothing
    assert duplicates.num_blocks == 0 and not duplicates._nodes and not duplicates._paths


def test_a_request_may_need_the_cache_of_all_but_its_last_token() -> None:
    request = Request("r", [1, 2, 3], SamplingParams(), max_tokens=4)
    assert num_computable(request) == 6
