from __future__ import annotations

import random

import pytest

from leafage.core.batch import Batch
from leafage.core.swap import RestoreCost, SwapSlots
from leafage.errors import ExecutorError, InvalidParameterError
from tests.core.toy import Loop
from tests.core.world import Rates, World


def _pressed(num_swap_slots: int, num_blocks: int = 12, **options: object) -> tuple[Loop, list[str]]:
    """Three long answers in a pool for little more than one."""
    loop = Loop(num_blocks, 4, num_swap_slots=num_swap_slots, **{"preemption": "swap", **options})
    ids = [loop.add(range(i, i + 9), max_tokens=30, temperature=1.0, seed=i) for i in (0, 20, 40)]
    return loop, ids


def _assert_answers(loop: Loop, ids: list[str]) -> None:
    for request_id in ids:
        loop.assert_undisturbed(request_id)
    assert loop.kv.num_active == 0
    loop.kv.swap.check([])


@pytest.mark.parametrize("num_swap_slots", [0, 5, 100])
def test_m03_some_request_always_progresses_whatever_the_swap_space_holds(num_swap_slots: int) -> None:
    loop, ids = _pressed(num_swap_slots)
    loop.run(500)
    _assert_answers(loop, ids)
    counters = loop.scheduler.counters
    assert counters.preemptions > 0
    assert (counters.swap_outs > 0) == (num_swap_slots > 0)
    assert counters.swap_ins == counters.swap_outs


def test_swapped_tokens_are_not_computed_again() -> None:
    loop, ids = _pressed(100)
    loop.run()
    _assert_answers(loop, ids)
    assert loop.scheduler.counters.recomputed_tokens == 0
    assert loop.executor.num_rows == 3 * (9 + 29)


def test_m04_a_gang_too_large_for_the_swap_space_is_computed_again() -> None:
    loop = Loop(60, 4, num_swap_slots=8, preemption="swap")
    ids = [loop.add(range(i, i + 9), n=4, max_tokens=30, temperature=1.0, seed=i) for i in (0, 20)]
    loop.run()
    _assert_answers(loop, ids)
    assert loop.kv.swap.counters.refused > 0
    assert loop.scheduler.counters.recomputed_tokens > 0


def test_a_block_that_a_gang_shares_moves_once() -> None:
    loop = Loop(40, 4, num_swap_slots=100, preemption="swap")
    request_id = loop.add(range(16), n=4, max_tokens=12, temperature=1.0, seed=1)
    for _ in range(4):
        loop.step()
    request = loop.requests[request_id]
    assert loop.kv.swap.num_blocks(request) == 4 + 4
    loop.kv.swap.out(request)
    batch_out = list(loop.kv.swap.outgoing)
    assert len(batch_out) == len({t.block for t in batch_out}) == 8
    loop.kv.swap.undo()


def test_what_the_index_still_has_is_not_read_back() -> None:
    """The first request's full blocks stay as cache: only its tail comes from the swap space."""
    loop = Loop(40, 4, num_swap_slots=100, preemption="swap")
    request_id = loop.add(range(9), max_tokens=20)
    for _ in range(6):
        loop.step()
    request = loop.requests[request_id]
    loop.kv.begin_step(100)
    assert loop.kv.swap.out(request)
    loop.scheduler.admission._requeue(request)
    assert loop.kv.swap_in(request, 0)
    assert [t.block for t in loop.kv.swap.incoming] == request.sequences[0].block_table[-1:]
    assert loop.kv.swap.counters.hits == 3


def _fail_transfers(loop: Loop, kind: str) -> None:
    def choose(batch: Batch) -> None:
        loop.executor.failed_transfers = list(getattr(batch, kind))

    loop.executor.before_execute = choose


@pytest.mark.parametrize("kind", ["swap_out", "swap_in"])
def test_p20_p21_a_failed_or_corrupt_transfer_is_computed_again(kind: str) -> None:
    loop, ids = _pressed(100)
    _fail_transfers(loop, kind)
    loop.run(1000)
    _assert_answers(loop, ids)
    assert loop.kv.swap.counters.lost > 0
    assert loop.scheduler.counters.recomputed_tokens > 0


@pytest.mark.parametrize("kind", ["swap_out", "swap_in"])
def test_a_batch_that_fails_loses_what_it_moved_and_nothing_else(kind: str) -> None:
    loop, ids = _pressed(100)
    failed: set[str] = set()
    spoiled = False
    while loop.scheduler.has_unfinished:
        batch = loop.scheduler.schedule()
        if getattr(batch, kind) and not spoiled:
            spoiled = True
            failed = {item.request_id for item in batch.items}
            loop.executor.spoil(batch)
            loop.record(loop.scheduler.fail(batch, ExecutorError("broken")))
        else:
            loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
        loop.verify()
    assert spoiled
    _assert_answers(loop, [request_id for request_id in ids if request_id not in failed])


def test_m06_two_swapped_requests_and_room_for_one_and_a_half_do_not_block_each_other() -> None:
    loop = Loop(15, 4, num_swap_slots=100, preemption="swap")
    ids = [loop.add(range(i, i + 9), max_tokens=30, temperature=1.0, seed=i) for i in (0, 20, 40, 60)]
    loop.run(1000)
    _assert_answers(loop, ids)
    assert loop.scheduler.counters.swap_ins >= 2


def test_p22_a_slot_that_is_read_is_not_reused_before_its_step_is_done() -> None:
    """The toy asserts that no slot is used twice in a step; this world swaps all the time."""
    num_swaps = 0
    for seed in range(20):
        rates = Rates(
            arrive=0.9, abort=0, abort_in_flight=0, fail=0, row_error=0, reset=0, transfer=0, swap=0
        )
        world = World(random.Random(seed), rates, preemption="swap", num_swap_slots=30, max_num_seqs=16)
        world.run(60)
        num_swaps += world.loop.scheduler.counters.swap_ins
    assert num_swaps > 20


def test_aborting_a_swapped_request_frees_its_slots() -> None:
    loop, ids = _pressed(100)
    while not any(loop.requests[request_id].swapped for request_id in ids):
        loop.step()
    [swapped, *_] = [request_id for request_id in ids if loop.requests[request_id].swapped]
    loop.scheduler.abort(swapped)
    loop.verify()
    loop.run()
    _assert_answers(loop, [request_id for request_id in ids if request_id != swapped])


def test_beams_come_back_from_the_swap_space_in_lockstep() -> None:
    loop = Loop(26, 2, max_num_batched_tokens=7, num_swap_slots=100, preemption="swap")
    ids = [loop.add(range(i, i + 8), beam_width=3, n=3, max_tokens=14) for i in (0, 20, 40, 60)]
    loop.run()
    _assert_answers(loop, ids)
    assert loop.scheduler.counters.swap_ins > 0


@pytest.mark.parametrize(("per_block", "swaps"), [(0.1, True), (100.0, False)])
def test_auto_takes_the_cheaper_way_back(per_block: float, swaps: bool) -> None:
    cost = RestoreCost(per_block=per_block, per_token=1.0)
    loop, ids = _pressed(100, preemption="auto", restore_cost=cost)
    loop.run()
    _assert_answers(loop, ids)
    assert (loop.scheduler.counters.swap_outs > 0) == swaps


def test_costs_are_sums_of_their_parts() -> None:
    cost = RestoreCost(per_block=2.0, per_transfer=0.25, per_token=3.0, per_pair=0.5)
    assert cost.swap(4) == 4 * 2.5
    assert cost.recompute(3) == 3 * 3.0 + (1 + 2 + 3) * 0.5


def test_slots_are_freed_once() -> None:
    slots = SwapSlots(2)
    slot = slots.allocate()
    slots.check({slot})
    slots.free(slot)
    with pytest.raises(AssertionError, match="freed twice"):
        slots.free(slot)


def test_an_unknown_preemption_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="preemption"):
        Loop(preemption="suspend")


@pytest.mark.parametrize(
    ("weights", "width", "layers", "token_bytes", "flops", "bandwidth", "recompute", "swaps"),
    [
        # OPT-13B on an A100, then Llama-3-8B on an H100; blocks of 1, 4, 8, 16, 32, 64 and 256 tokens
        (12.58e9, 5120, 40, 800 << 10, 312e12, 25e9, 60.0, (43.8, 36.1, 34.8, 34.2, 33.9, 33.7, 33.6)),
        (6.98e9, 4096, 32, 128 << 10, 989e12, 50e9, 10.9, (12.9, 5.2, 4.0, 3.3, 3.0, 2.8, 2.7)),
    ],
)
def test_r5_4_restoring_512_tokens_on_the_papers_machines(
    weights: float,
    width: int,
    layers: int,
    token_bytes: int,
    flops: float,
    bandwidth: float,
    recompute: float,
    swaps: tuple[float, ...],
) -> None:
    rate = 0.7 * flops  # of the peak; 10 us a block and 0.5 ms a step beside it
    for block_size, expected in zip((1, 4, 8, 16, 32, 64, 256), swaps, strict=True):
        cost = RestoreCost(
            per_block=2 * block_size * token_bytes / bandwidth,
            per_transfer=10e-6,
            per_token=2 * weights / rate,
            per_pair=4 * layers * width / rate,
        )
        assert 1e3 * cost.swap(512 // block_size) == pytest.approx(expected, abs=0.06)
        assert 1e3 * cost.recompute(512) + 0.5 == pytest.approx(recompute, abs=0.06)


def test_a_victim_that_has_computed_nothing_is_not_swapped() -> None:
    loop = Loop(40, 4, num_swap_slots=10, preemption="swap")
    request_id = loop.add(range(9), max_tokens=4)
    request = loop.requests[request_id]
    loop.kv.begin_step(1)
    assert loop.scheduler.admission.admit(request, 1)
    assert not loop.kv.swap.out(request)
    assert loop.kv.swap.counters.refused == 0
