"""Cases P of the collected failures of other engines: prefix caching."""

from __future__ import annotations

import random

import pytest

from leafage.core import claims, kv_manager, prefix_index, radix_tree
from leafage.core.hash_chain import HashChain
from leafage.core.misses import PrefixMiss
from tests.core.toy import Loop, numbers
from tests.core.world import World

BOTH = pytest.mark.parametrize("index", ["radix", "hash_chain"])


@pytest.mark.parametrize("block_size", [1, 7, 16, 100, 256, 784])
def test_p01_a_shared_prefix_hits_whatever_the_block_size(block_size: int) -> None:
    loop = Loop(4000 // block_size + 4, block_size)
    shared = numbers(240)
    first = loop.add([*shared, 1001, 1002, 1003], max_tokens=4)
    loop.run()
    second = loop.add([*shared, 2001, 2002], max_tokens=4)
    loop.run()
    assert loop.answers[second, 0].num_cached >= 239
    loop.assert_undisturbed(first)
    loop.assert_undisturbed(second)


def test_p01_whole_blocks_hit_while_the_first_request_still_runs() -> None:
    loop = Loop(100, 16)
    loop.add(numbers(250), max_tokens=50)
    loop.step()
    second = loop.add([*numbers(245), 9000], max_tokens=2)
    loop.run()
    assert loop.answers[second, 0].num_cached == 240


@pytest.mark.parametrize("block_size", [1, 7, 16, 100, 256])
def test_p01_a_hash_chain_shares_the_whole_blocks(block_size: int) -> None:
    loop = Loop(4000 // block_size + 4, block_size, prefix_index="hash_chain")
    loop.add([*numbers(240), 1001, 1002, 1003], max_tokens=4)
    loop.run()
    second = loop.add([*numbers(240), 2001, 2002], max_tokens=4)
    loop.run()
    assert loop.answers[second, 0].num_cached == 240 // block_size * block_size
    loop.assert_undisturbed(second)


def test_e6_a_hash_chain_loses_less_than_a_block_a_prompt() -> None:
    """A chat: each turn has all that was said. The radix tree hits all of it but the last token's K/V."""
    cached: dict[str, list[int]] = {}
    for index in ("radix", "hash_chain"):
        loop = Loop(100, 16, prefix_index=index)
        said: list[int] = []
        cached[index] = []
        for turn in range(8):
            said += [1000 * (turn + 1) + i for i in range(21 + turn)]
            request_id = loop.add(said, max_tokens=9)
            loop.run()
            cached[index].append(loop.answers[request_id, 0].num_cached)
            before = len(said)
            said += loop.tokens(request_id)
            assert len(said) == before + 9
    radix, chain = cached["radix"], cached["hash_chain"]
    assert radix == [sum(21 + i + 9 for i in range(turn)) - (turn > 0) for turn in range(8)]
    assert chain == [hits // 16 * 16 for hits in radix] != radix


@pytest.mark.parametrize("index", ["radix", "radix-node", "hash_chain"])
def test_e7_one_pool_gives_a_request_all_of_it_and_costs_what_was_cached(index: str) -> None:
    loop = Loop(20, 4, prefix_index=index)
    prefix = numbers(40)
    loop.add(prefix, max_tokens=1)
    loop.run()
    assert loop.kv.num_cached == 10 and loop.kv.num_active == 0
    large = loop.add(numbers(78, 500), max_tokens=2)  # a part set aside for the cache would refuse it
    loop.run()
    loop.assert_undisturbed(large)
    assert loop.scheduler.counters.preemptions == 0
    again = loop.add(prefix, max_tokens=1)
    loop.run()
    assert loop.answers[again, 0].num_cached == 0, "busy times leave nothing; a pin keeps what must stay"


def miss_of(loop: Loop, prompt: list[int], **options: object) -> PrefixMiss | None:
    request_id = loop.add(prompt, max_tokens=1, **options)  # type: ignore[arg-type]
    loop.run()
    return loop.requests[request_id].prefix_miss


def test_p01_a_client_is_told_where_its_prefix_ends_and_why() -> None:
    loop = Loop(20, 16)
    assert miss_of(loop, numbers(60)) == PrefixMiss("no_match", 0, 0)
    assert miss_of(loop, numbers(60)) is None, "all but the last token, which always runs"
    other = [*numbers(40), 777, *numbers(30, 41)]
    assert miss_of(loop, other) == PrefixMiss("no_match", 40, 777, 40), "where, and the two tokens"
    assert miss_of(loop, [*numbers(60), 5, 6]) == PrefixMiss("no_match", 60, 5), "the cached text ends there"
    loop.add(numbers(300, 5000), max_tokens=1)  # takes the pool: the first prompts are evicted
    loop.run()
    assert miss_of(loop, numbers(60)) == PrefixMiss("evicted", 16, 16)


def test_p01_a_part_of_a_block_that_cannot_be_shared_is_below_block() -> None:
    loop = Loop(20, 16)
    loop.add(numbers(64), max_tokens=8)
    assert miss_of(loop, [*numbers(60), 7, 8]) == PrefixMiss("below_block", 48, 48), "computed in this step"
    chain = Loop(20, 16, prefix_index="hash_chain")
    chain.add(numbers(60), max_tokens=1)
    chain.run()
    assert miss_of(chain, numbers(60)) == PrefixMiss("below_block", 48, 48)
    assert miss_of(chain, [*numbers(40), *numbers(30, 700)]) == PrefixMiss("no_match", 32, 32)


def test_p01_what_came_meanwhile_is_no_miss() -> None:
    """The second of two equal prompts is admitted before the first one is computed."""
    loop = Loop(40, 16, max_num_batched_tokens=32)
    loop.add(numbers(160), max_tokens=1)
    request_id = loop.add([*numbers(150), *numbers(10, 900)], max_tokens=1)
    loop.run()
    request = loop.requests[request_id]
    assert request.num_cached == 144
    assert request.prefix_miss == PrefixMiss("no_match", 144, 144), "nobody had computed more then"


@BOTH
def test_p10_nothing_is_shared_or_told_across_salts(index: str) -> None:
    loop = Loop(40, 16, prefix_index=index)
    prompt = numbers(64)
    loop.add(prompt, max_tokens=1, salt="A")
    loop.run()
    for salt in ("B", "", "A "):
        assert miss_of(loop, prompt, salt=salt) == PrefixMiss("no_match", 0, 0)
        assert loop.requests[f"r{loop.num_added - 1}"].num_cached == 0
    assert miss_of(loop, prompt, salt="A") is None
    loop.kv.reset_prefix_cache()
    assert miss_of(loop, prompt, salt="C") == PrefixMiss("no_match", 0, 0), "nor what another salt had"


def test_p01_misses_are_counted_by_reason() -> None:
    loop = Loop(20, 16)
    missed = loop.scheduler.counters.prefix_cache_miss_tokens
    loop.add(numbers(64), max_tokens=1)
    loop.run()
    assert missed == {"no_match": 64, "below_block": 0, "evicted": 0, "salt": 0}
    loop.add(numbers(64), max_tokens=1)  # all but the last token, which always runs
    loop.run()
    assert missed["below_block"] == 1 and missed["no_match"] == 64
    loop.add(numbers(64), max_tokens=1, salt="other tenant")
    loop.run()
    assert missed["salt"] == 64 and missed["no_match"] == 64
    loop.add(numbers(300, 5000), max_tokens=1)  # takes the pool: the first prompts are evicted
    loop.run()
    before = missed["no_match"]
    loop.add(numbers(64), max_tokens=1)
    loop.run()
    assert missed["evicted"] == 64 and missed["no_match"] == before


def test_p02_short_prefixes_hit() -> None:
    loop = Loop(64, 16)
    loop.add([*numbers(100), 500], max_tokens=3)
    loop.run()
    second = loop.add([*numbers(100), 600], max_tokens=3)
    loop.run()
    assert loop.answers[second, 0].num_cached >= 99


def test_p04_free_cached_and_active_are_told_apart() -> None:
    loop = Loop(32, 16)
    loop.add(numbers(100), max_tokens=5)
    loop.step()
    assert (loop.kv.num_active, loop.kv.num_cached) == (7, 0)
    loop.run()
    assert loop.kv.num_active == 0
    assert loop.kv.num_cached == 7, "the prefix is cached, not lost"
    assert loop.kv.num_free + loop.kv.num_cached + loop.kv.num_active == 32


def test_p05_preempted_requests_do_not_hit_their_own_blocks() -> None:
    loop = Loop(12, 4)
    for i in range(6):
        loop.add([1000 * (i + 1) + j for j in range(8)], max_tokens=24)
    loop.run()
    counters = loop.scheduler.counters
    assert counters.preemptions > 0 and counters.recompute_hits > 0
    assert counters.prefix_hits == 0
    assert counters.prefix_queries == 6 * 8


def test_p06_a_retried_allocation_is_counted_once() -> None:
    loop = Loop(8, 4)
    loop.add(numbers(24), max_tokens=8)
    loop.step()
    waiting = loop.add(numbers(16) + numbers(12, 900), max_tokens=4)
    for _ in range(5):
        loop.step()
        assert loop.scheduler.num_waiting == 1
    loop.run()
    counters = loop.scheduler.counters
    assert counters.prefix_queries == 24 + 28
    assert counters.prefix_hits == loop.answers[waiting, 0].num_cached == 16


@pytest.mark.parametrize("seed", range(6))
def test_p07_counters_only_grow(seed: int) -> None:
    world = World(random.Random(seed))
    before: dict[str, int] = {}
    for _ in range(120):
        world.step()
        counters = world.loop.scheduler.counters
        kv = world.loop.kv.counters
        now = {f"miss {k}": v for k, v in counters.prefix_cache_miss_tokens.items()}
        for source in (counters, kv):
            now |= {n: v for n in source.__slots__ if isinstance(v := getattr(source, n), int)}
        assert all(now[name] >= value for name, value in before.items())
        before = now
    world.finish()


class WeakTuple(tuple[int, ...]):
    """A key whose hash has 4 bits."""

    def __hash__(self) -> int:
        return tuple.__hash__(self) & 15


@pytest.mark.parametrize("case", ["p08", "p09"])
def test_p08_p09_colliding_hashes_change_no_answer(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claims, kv_manager, prefix_index, radix_tree):
        monkeypatch.setattr(module, "tuple", WeakTuple, raising=False)
    loop = Loop(400, 4)
    rng = random.Random(case)
    ids = [loop.add([rng.randint(0, 9) for _ in range(20)], max_tokens=4) for _ in range(100)]
    loop.run()
    keys = {node.key for node in loop.kv.index.nodes()}
    assert len(keys) > 100 and len({hash(key) for key in keys}) <= 16, "the weak hash is in use"
    for request_id in ids:
        loop.assert_undisturbed(request_id)


def test_p08_p09_a_hash_chain_with_a_4_bit_hash_changes_no_answer() -> None:
    index = HashChain(4, lambda value: hash(value) & 15)
    loop = Loop(700, 4, prefix_index=index)
    rng = random.Random(8)
    prompts = [[rng.randint(0, 9) for _ in range(20)] for _ in range(100)]
    for turn in range(2):
        ids = [loop.add(prompt, max_tokens=4) for prompt in prompts]
        loop.run()
        assert len(index._table) == 16 and sum(1 for _ in index.nodes()) > 100, "the weak hash is in use"
        for request_id in ids:
            loop.assert_undisturbed(request_id)
            assert loop.answers[request_id, 0].num_cached >= turn * 16


@BOTH
def test_p11_a_refilled_block_is_not_found_by_its_old_prompt(index: str) -> None:
    loop = Loop(6, 4, prefix_index=index)
    loop.add(numbers(20), max_tokens=2)
    loop.run()
    loop.add(numbers(20, 700), max_tokens=4)
    loop.run()
    again = loop.add(numbers(20), max_tokens=2)
    loop.run()
    assert loop.answers[again, 0].num_cached == 0
    loop.assert_undisturbed(again)


def test_p12_a_prompt_of_exactly_one_cached_block_runs_its_last_token_again() -> None:
    loop = Loop(4, 256)
    prompt = numbers(256)
    first = loop.add(prompt, max_tokens=3)
    loop.run()
    rows = loop.executor.num_rows
    second = loop.add(prompt, max_tokens=3)
    batch = loop.scheduler.schedule()
    (item,) = batch.items
    assert (item.start, len(item.token_ids), item.write_from) == (255, 1, 256), "its K/V is not written"
    loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
    loop.run()
    assert loop.executor.num_rows - rows == 1 + 2
    assert loop.answers[second, 0].num_cached == 255
    assert loop.tokens(first) == loop.tokens(second)
    loop.assert_undisturbed(second)


@pytest.mark.parametrize("budget", [128, 100_000])
@pytest.mark.parametrize("length", [512, 500, 513])
@pytest.mark.parametrize("block_size", [16, 32])
def test_p14_equal_prompts_together_are_computed_once(budget: int, length: int, block_size: int) -> None:
    loop = Loop(400, block_size, max_num_batched_tokens=budget)
    ids = [loop.add(numbers(length), max_tokens=5) for _ in range(8)]
    loop.run()
    limit = length + 8 if length % block_size == 0 else 512 + 8 * block_size
    assert loop.executor.num_prompt_rows <= limit
    for request_id in ids:
        loop.assert_undisturbed(request_id)
    assert [loop.answers[r, 0].num_cached for r in ids[1:]] == [
        min(length // block_size * block_size, length - 1)
    ] * 7


def test_p14_duplicates_merge_late() -> None:
    """Equal requests a step apart: the second computes a partial block itself, both meet when it is full."""
    loop = Loop(64, 4)
    first = loop.add(numbers(6), max_tokens=20)
    loop.step()
    second = loop.add(numbers(6), max_tokens=20)  # its partial block is its own: nothing to copy from yet
    loop.run()
    assert loop.kv.counters.merged_blocks > 0
    loop.assert_undisturbed(first)
    loop.assert_undisturbed(second)


@pytest.mark.parametrize("seed", range(12))
def test_p15_cache_on_and_off_give_the_same_tokens(seed: int) -> None:
    answers = []
    for index in ("radix", "hash_chain", "none"):
        rng = random.Random(seed)
        loop = Loop(14, 4, prefix_index=index, max_num_batched_tokens=16, vocab_size=3)
        ids = []
        for _ in range(60):
            if rng.random() < 0.5:
                head = [0, 1, 2, 0, 1, 2, 0][: rng.randint(1, 7)]
                prompt = head + [rng.randint(0, 2) for _ in range(rng.randint(0, 9))]
                ids.append(loop.add(prompt, max_tokens=rng.randint(1, 20)))
            loop.step()
        loop.run()
        answers.append([loop.tokens(request_id) for request_id in ids])
        assert (loop.kv.counters.evicted_blocks > 0) == (index != "none")
    assert answers[0] == answers[1] == answers[2]


def test_p19_nothing_leaks_over_a_thousand_requests() -> None:
    rng = random.Random(19)
    loop = Loop(40, 4, max_num_batched_tokens=64, check=False)
    ids = []
    while loop.num_added < 1000:
        for _ in range(rng.randint(0, 3)):
            prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 40))]
            ids.append(loop.add(prompt, max_tokens=rng.randint(1, 30), n=rng.choice([1, 1, 2])))
        if rng.random() < 0.3:
            loop.scheduler.abort(rng.choice(ids))
        loop.step()
        if loop.num_added % 50 == 0:
            loop.kv.check()
    loop.run()
    loop.kv.check()
    assert loop.kv.num_active == 0 and loop.kv.num_free + loop.kv.num_cached == 40
    assert sum(loop.kv.store.pool.ref_count) == loop.kv.num_cached
    loop.kv.reset_prefix_cache()
    assert set(loop.kv.store.pool.ref_count) == {0} and loop.kv.num_free == 40
