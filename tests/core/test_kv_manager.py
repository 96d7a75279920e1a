"""KVManager: attach, copy-on-write, publish, release, undo."""

from __future__ import annotations

import pytest

from leafage.core.kv_manager import KVManager
from leafage.core.request import FinishKind
from leafage.errors import ExecutorError, InvalidParameterError
from tests.core.toy import Loop


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 16), "num_blocks"),
        ((4, 0), "block_size"),
        ((4, 16, "hash"), "prefix index"),
    ],
)
def test_wrong_sizes_are_refused_by_name(arguments: tuple[int, ...], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        KVManager(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="max_pinned_blocks"):
        KVManager(4, 16, max_pinned_blocks=4)


@pytest.mark.parametrize(
    ("n", "blocks"),
    [(1, 13), (2, 19), (4, 31), (8, 55)],
)
def test_parallel_samples_share_the_prompt_blocks(n: int, blocks: int) -> None:
    """Prompt 62, 40 outputs, block 8: 7 full prompt blocks once, n x 6 others, exactly n - 1 copies."""
    loop = Loop(100, 8)
    request_id = loop.add(range(62), max_tokens=41, n=n, seed=5, temperature=1.0)
    most = 0
    while loop.scheduler.has_unfinished:
        loop.step()
        most = max(most, loop.kv.num_active)
    assert most == blocks
    assert loop.kv.counters.copied_blocks == n - 1
    loop.assert_undisturbed(request_id)


def test_a_full_prompt_block_is_never_copied() -> None:
    loop = Loop(100, 8)
    request_id = loop.add(range(64), max_tokens=9, n=4, seed=1, temperature=1.0)
    loop.run()
    assert loop.kv.counters.copied_blocks == 0
    loop.assert_undisturbed(request_id)


@pytest.mark.parametrize("n", [2, 4])
def test_each_sample_is_what_its_own_seed_gives_alone(n: int) -> None:
    loop = Loop(100, 8)
    together = loop.add(range(30), max_tokens=12, n=n, seed=77, temperature=1.0)
    loop.run()
    seeds = [seq.seed for seq in loop.requests[together].sequences]
    assert seeds[0] == 77 and len(set(seeds)) == n
    for i, seed in enumerate(seeds):
        alone = Loop(100, 8)
        single = alone.add(range(30), max_tokens=12, seed=seed, temperature=1.0)
        alone.run()
        assert alone.tokens(single) == loop.tokens(together, i)


def test_the_partial_block_of_a_finished_sequence_is_copied_token_by_token() -> None:
    loop = Loop(20, 16)
    loop.add(range(40), max_tokens=1)
    loop.run()
    second = loop.add([*range(37), 900, 901], max_tokens=2)
    batch = loop.scheduler.schedule()
    (copy,) = batch.copies
    assert copy.num_slots == 37 - 32
    assert batch.items[0].start == 37
    loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
    loop.run()
    loop.assert_undisturbed(second)


def test_a_longer_conversation_replaces_the_leaf_it_extends() -> None:
    loop = Loop(20, 16)
    loop.add(range(20), max_tokens=1)
    loop.run()
    assert [len(node.key) for node in loop.kv.index.nodes()] == [16, 4]
    loop.add(range(40), max_tokens=1)
    loop.run()
    assert sorted(len(node.key) for node in loop.kv.index.nodes()) == [8, 16, 16]


def test_salts_never_share() -> None:
    loop = Loop(60, 4)
    prompt = list(range(20))
    loop.add(prompt, salt="a", max_tokens=2)
    loop.run()
    other = loop.add(prompt, salt="b", max_tokens=2)
    own = loop.add(prompt, salt="a", max_tokens=2)
    loop.run()
    assert loop.answers[other, 0].num_cached == 0
    assert loop.answers[own, 0].num_cached == 19


def test_without_an_index_nothing_is_cached() -> None:
    loop = Loop(60, 4, prefix_index="none")
    for _ in range(2):
        last = loop.add(range(20), max_tokens=2)
        loop.run()
    assert loop.answers[last, 0].num_cached == 0 and loop.kv.num_cached == 0 and loop.kv.num_free == 60


@pytest.mark.parametrize(("prefix_index", "left"), [("radix", 5), ("radix-node", 1)])
def test_room_is_made_by_the_block_or_by_the_whole_leaf(prefix_index: str, left: int) -> None:
    """Two conversations of six blocks share the first. One more is needed: the older loses its end or all."""
    loop = Loop(12, 4, prefix_index=prefix_index)
    common = list(range(4))
    older = [*common, *range(10, 29)]
    loop.add(older, max_tokens=1)
    loop.run()
    loop.add([*common, *range(30, 49)], max_tokens=1)
    loop.run()
    assert loop.kv.num_free == 1
    loop.add([50, 51, 52, 53, 54], max_tokens=1)
    loop.run()
    assert len(loop.kv.index.match("", older, 20)) == left
    assert loop.kv.counters.evicted_blocks == 6 - left


def test_a_failed_step_takes_back_what_it_published() -> None:
    loop = Loop(60, 4, max_num_batched_tokens=20)
    first = loop.add(range(40), max_tokens=2)
    loop.add(range(40), max_tokens=2)
    batch = loop.scheduler.schedule()
    failed = {item.request_id for item in batch.items}
    assert failed == {first}, "the second attached the first's blocks and waits for the next"
    loop.executor.spoil(batch)
    deltas = loop.scheduler.fail(batch, ExecutorError("out of order"))
    loop.verify()
    assert {delta.request_id for delta in deltas} == failed
    assert all(d.finish is not None and d.finish.kind is FinishKind.ERROR for d in deltas)
    assert len(list(loop.kv.index.nodes())) == 0 and loop.kv.num_free == 60
    assert loop.scheduler.num_waiting == 1
    loop.record(deltas)
    loop.run()
    loop.assert_undisturbed("r1")
    assert loop.answers["r1", 0].num_cached == 0


def test_reset_evicts_the_cache_and_nothing_else() -> None:
    loop = Loop(30, 4)
    loop.add(range(20), max_tokens=2)
    loop.run()
    running = loop.add(range(100, 120), max_tokens=8)
    loop.step()
    cached = loop.kv.num_cached
    assert cached > 0 and loop.kv.reset_prefix_cache() == cached
    loop.verify()
    loop.run()
    loop.assert_undisturbed(running)


def test_check_sees_a_wrong_count_and_a_foreign_table_entry() -> None:
    loop = Loop(30, 4)
    loop.add(range(20), max_tokens=4)
    loop.step()
    seq = loop.scheduler.roster.running[0].sequences[0]
    loop.kv.store.pool.ref_count[seq.block_table[0]] += 1
    with pytest.raises(AssertionError, match="owners"):
        loop.kv.check()
    loop.kv.store.pool.ref_count[seq.block_table[0]] -= 1
    loop.kv.check()
    seq.block_table[0], seq.block_table[1] = seq.block_table[1], seq.block_table[0]
    with pytest.raises(AssertionError, match="published block"):
        loop.kv.check()
