"""ReservedKVManager: Orca's reservations behind the KV interface, with the tokens of the paged engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from leafage.core.arena import ARENAS
from leafage.core.batch import Batch, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.request import Sequence
from leafage.core.reserved import RESERVATIONS, ReservedKVManager, reserve_max, reserve_oracle, reserve_pow2
from leafage.errors import ExecutorError, InvalidParameterError, RequestTooLargeError
from tests.core.toy import Loop
from tests.core.world import World

KINDS = [(reservation, allocator) for reservation in RESERVATIONS for allocator in ARENAS]


def test_what_each_system_reserves() -> None:
    assert reserve_max(100, 25, 2048) == 2048
    assert reserve_pow2(100, 25, 2048) == 132  # the paper's example: 25 outputs, 32 reserved
    assert [reserve_pow2(0, n, 2048) for n in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert reserve_pow2(2000, 33, 2048) == 2048
    assert reserve_oracle(100, 25, 2048) == 124  # K/V of the last token is never needed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 16, "max", 64), "num_blocks"),
        ((4, 0, "max", 64), "block_size"),
        ((4, 16, "max", 0), "max_model_len"),
        ((4, 16, "half", 64), "unknown reservation.*half.*max or pow2 or oracle"),
        ((4, 16, "max", 65), "no room for one reservation.*64 tokens, first-fit.*at least 80 tokens"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[int, int, str, int], message: str) -> None:
    *sizes, max_model_len = arguments
    with pytest.raises(InvalidParameterError, match=message):
        ReservedKVManager(*sizes, max_model_len=max_model_len)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match=r"unknown allocator.*first-fit or buddy or scattered"):
        ReservedKVManager(4, 16, "max", max_model_len=64, allocator="best")
    with pytest.raises(InvalidParameterError, match=r"112 tokens, buddy.*at least 128 tokens"):
        ReservedKVManager(7, 16, "max", max_model_len=112, allocator="buddy")


def test_blocks_of_a_sequence_are_consecutive_and_appear_as_it_grows() -> None:
    loop = Loop(64, 4, max_model_len=64, reservation="oracle")
    loop.add(range(10), max_tokens=8)  # 17 slots: 5 blocks
    loop.add(range(6), max_tokens=30)
    loop.step()
    first, second = loop.kv.attached()
    assert first.block_table == [0, 1, 2] and second.block_table == [5, 6]
    assert loop.kv.num_active == 5 + 9
    for _ in range(4):
        loop.step()
    assert first.block_table == [0, 1, 2, 3] and second.block_table == [5, 6, 7]
    loop.run()
    assert loop.kv.num_active == 0


def test_scattered_blocks_need_no_hole_that_is_long_enough() -> None:
    """Four runs of two blocks; the second and the last leave, and three blocks are wanted."""
    tables = {}
    for allocator in ("first-fit", "scattered"):
        loop = Loop(8, 4, max_model_len=32, reservation="oracle", allocator=allocator)
        for max_tokens in (4, 2, 4, 2):
            loop.add(range(5), max_tokens=max_tokens)
        loop.step()
        loop.step()
        loop.add(range(9), max_tokens=4)  # 12 slots
        loop.step()
        tables[allocator] = [seq.block_table for seq in loop.kv.attached()]
        waits = loop.kv.counters.fragmented_admissions
        assert waits == (1 if allocator == "first-fit" else 0)
        loop.run()
    assert tables == {"first-fit": [[0, 1], [4, 5]], "scattered": [[0, 1], [4, 5], [6, 7, 2]]}


@pytest.mark.parametrize(("reservation", "allocator"), KINDS)
@pytest.mark.parametrize("n", [2, 4])
def test_r1_7_parallel_samples_are_n_copies(reservation: str, allocator: str, n: int) -> None:
    """Prompt 62, block 8: each of the n - 1 siblings copies 8 blocks; paged, 19 and 31 blocks in all."""
    loop = Loop(512, 8, max_model_len=128, reservation=reservation, allocator=allocator)
    request_id = loop.add(range(62), max_tokens=41, n=n, seed=5, temperature=1.0)
    loop.step()
    length = {"max": 16, "pow2": 16, "oracle": 13}[reservation]
    rounded = 16 if allocator == "buddy" else length
    assert loop.kv.num_active == n * rounded
    assert len(loop.kv.copies) == loop.kv.counters.copied_blocks == 8 * (n - 1)
    assert {copy.num_slots for copy in loop.kv.copies} == {8, 6}
    while len(loop.requests[request_id].sequences[0].tokens) < 62 + 40:
        loop.step()
    assert sum(len(seq.block_table) for seq in loop.kv.attached()) == 13 * n  # 26 and 52: nothing is shared
    loop.run()
    loop.assert_undisturbed(request_id)


def test_siblings_are_copied_from_a_parent_that_ended_first() -> None:
    """Its run may have a new owner in the step that copies, which then writes after the copies."""
    loop = Loop(12, 4, max_model_len=16, max_num_seqs=8, reservation="max", vocab_size=4)
    for seed in range(40):  # some of these parents draw the end-of-generation id at once
        n = 1 if seed % 2 else 3
        loop.add([1, 2, 3, 1, 2], n=n, max_tokens=8, seed=seed, temperature=1.0, eos=[0])
    taken_over = 0
    while loop.scheduler.has_unfinished:
        batch = loop.scheduler.schedule()
        loop.verify()
        sources = {copy.src for copy in batch.copies}
        taken_over += any(
            sources.intersection(item.block_table) and item.start == 0
            for item in batch.items  # a new request in the source's blocks
        )
        loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
        loop.verify()
    assert taken_over > 2
    for request_id in loop.requests:
        loop.assert_undisturbed(request_id)


def test_copies_that_nobody_needs_are_not_made() -> None:
    loop = Loop(12, 4, max_model_len=16, reservation="max")
    loop.add([1, 2, 3, 1, 2], n=3, max_tokens=1, temperature=1.0, seed=1)
    loop.step()
    assert loop.kv.copies == [] and loop.kv.num_active == 0


def test_a_failed_step_restarts_the_siblings_whose_copies_were_not_made() -> None:
    loop = Loop(64, 4, max_model_len=32, max_num_batched_tokens=8, reservation="oracle")
    first = loop.add([20], max_tokens=20)
    gang = loop.add(range(4), n=8, max_tokens=4, temperature=1.0, seed=3)
    while not loop.kv.copies:
        loop.step()
    batch = loop.scheduler.schedule()
    assert len(batch.copies) == 7 and {item.request_id for item in batch.items} == {first}
    loop.executor.spoil(batch)
    loop.record(loop.scheduler.fail(batch, ExecutorError("broken")))
    loop.verify()
    assert loop.kv.copies == [] and not list(loop.kv.attached())
    loop.run()
    loop.assert_undisturbed(gang)


@pytest.mark.parametrize(("reservation", "allocator"), KINDS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_longest_output_is_the_largest_that_runs_alone(reservation: str, allocator: str, n: int) -> None:
    for num_prompt in (1, 7, 20):
        loop = Loop(23, 4, max_model_len=40, reservation=reservation, allocator=allocator)
        room = loop.kv.longest_output(num_prompt, n)
        assert room <= 40 - num_prompt
        if room > 0:
            request_id = loop.add([1] * num_prompt, n=n, max_tokens=room, temperature=1.0, seed=1)
            loop.run()
            loop.assert_undisturbed(request_id)
        with pytest.raises(RequestTooLargeError):
            loop.add([1] * num_prompt, n=n, max_tokens=room + 1, temperature=1.0, seed=1)


def test_max_reservation_holds_few_requests_where_paging_holds_many() -> None:
    """E1: 748 blocks of 16 hold five requests of at most 2,048 tokens, whatever their lengths."""

    def at_once(reservation: str | None) -> int:
        loop = Loop(748, 16, max_model_len=2048, max_num_batched_tokens=65536, reservation=reservation)
        for i in range(64):
            loop.add([i] * 150, max_tokens=100)
        loop.step()
        return loop.scheduler.num_running

    assert at_once("max") == 5
    assert at_once("pow2") == 748 // 18
    assert at_once("oracle") == 748 // 16
    assert at_once(None) == 64


def test_no_watermark_is_kept_for_growth_that_is_reserved() -> None:
    loop = Loop(8, 4, max_model_len=16, reservation="max", watermark=1)
    for i in range(3):
        loop.add([i], max_tokens=3)
    loop.step()
    assert loop.scheduler.num_running == 2 and loop.kv.num_free == 0


def test_an_admission_that_only_fragmentation_prevents_is_counted_once_per_request() -> None:
    loop = Loop(8, 4, max_model_len=32, reservation="oracle")
    for i, length in enumerate((3, 20, 3)):
        loop.add([i] * 9, f"r{i}", max_tokens=length - 1)
    loop.step()
    assert loop.kv.counters.fragmented_admissions == 0
    assert [seq.block_table[0] for seq in loop.kv.attached()] == [0]
    loop = Loop(9, 4, max_model_len=32, reservation="oracle")
    for i in range(3):
        loop.add([i] * 9, f"r{i}", max_tokens=4 if i == 1 else 3)
    loop.step()
    loop.scheduler.abort("r0")
    loop.scheduler.abort("r2")  # six blocks are free, three on each side
    loop.add([7] * 9, "wide", max_tokens=8)
    for _ in range(2):
        loop.step()
        assert loop.kv.counters.fragmented_admissions == 1
    loop.run()
    loop.assert_undisturbed("wide")


@pytest.mark.parametrize(("reservation", "allocator"), KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_random_worlds_end_undisturbed(reservation: str, allocator: str, seed: int) -> None:
    """Arrivals, aborts, failures, gangs and small pools; the tokens are those of a run alone."""
    world = World(random.Random(seed), reservation=reservation, allocator=allocator)
    admission = world.loop.scheduler.admission
    make_room = admission.make_room

    def checked(*args: Any) -> bool:
        before = world.loop.scheduler.counters.preemptions
        fits = make_room(*args)
        assert fits and world.loop.scheduler.counters.preemptions == before, "nobody runs out of memory"
        return fits

    admission.make_room = checked  # type: ignore[method-assign]
    world.run(100)
    assert world.loop.kv.num_cached == 0


def test_the_worlds_see_what_they_should() -> None:
    totals = {"copies": 0, "done": 0}
    for seed in range(24):
        reservation, allocator = KINDS[seed % len(KINDS)]
        world = World(random.Random(1000 + seed), reservation=reservation, allocator=allocator)
        world.run(100)
        totals["copies"] += world.loop.kv.counters.copied_blocks
        totals["done"] += world.num_done
    assert min(totals.values()) > 20, f"too few to prove anything: {totals}"


@pytest.mark.parametrize(("reservation", "allocator"), KINDS)
def test_reserved_and_paged_give_the_same_tokens(reservation: str, allocator: str) -> None:
    def answers(**options: object) -> list[list[int]]:
        loop = Loop(48, 4, max_model_len=64, max_num_batched_tokens=24, **options)  # type: ignore[arg-type]
        rng = random.Random(2)
        ids = []
        for i in range(30):
            prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 30))]
            n = rng.choice([1, 1, 2])
            ids.append((loop.add(prompt, max_tokens=rng.randint(1, 30), n=n, temperature=1.0, seed=i), n))
        loop.run()
        return [loop.tokens(request_id, i) for request_id, n in ids for i in range(n)]

    assert answers(reservation=reservation, allocator=allocator) == answers()


def spill(patch: pytest.MonkeyPatch) -> None:
    """Growth takes one block too many."""
    grow = ReservedKVManager.grow

    def bad(self: ReservedKVManager, seq: Sequence, end: int) -> None:
        grow(self, seq, end)
        seq.block_table.append(seq.block_table[-1] + 1)

    patch.setattr(ReservedKVManager, "grow", bad)


def short_copy(patch: pytest.MonkeyPatch) -> None:
    """A sibling misses the prompt's last block."""
    fork = ReservedKVManager.fork

    def bad(self: ReservedKVManager, parent: Sequence, child: Sequence) -> None:
        fork(self, parent, child)
        self.copies.pop()

    patch.setattr(ReservedKVManager, "fork", bad)


def lost_run(patch: pytest.MonkeyPatch) -> None:
    """Runs of siblings that were never forked are not given back."""
    release = ReservedKVManager.release

    def bad(self: ReservedKVManager, seq: Sequence, *, keep_tail: bool) -> None:
        self._spare.pop(seq.request_id, None)
        release(self, seq, keep_tail=keep_tail)

    patch.setattr(ReservedKVManager, "release", bad)


@pytest.mark.parametrize("plant", [spill, short_copy, lost_run])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(60):
        try:
            World(random.Random(seed), reservation="oracle").run(100)
        except (AssertionError, KeyError, IndexError):
            return
    raise AssertionError("no world noticed")


def test_whole_batches_go_through_the_seam_unchanged() -> None:
    """A reserved batch is like any other: the executor sees block tables and copies, nothing else."""
    loop = Loop(16, 4, max_model_len=16, reservation="max")
    loop.add(range(6), max_tokens=3)
    batch = loop.scheduler.schedule()
    assert isinstance(batch, Batch) and batch.items[0].block_table == [0, 1]
    loop.scheduler.update(batch, loop.executor.execute(batch) if batch.has_work else StepOutput())
    assert not isinstance(loop.kv, KVManager)
