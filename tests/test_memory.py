"""Where the memory goes."""

from __future__ import annotations

from typing import Any

import pytest

from leafage import memory
from leafage.build import Assets, assemble
from leafage.config import EngineConfig
from leafage.core.arena import Buddy, FirstFit, Scattered
from leafage.core.kv_manager import INDEXES, KVManager
from leafage.core.reserved import ReservedKVManager
from leafage.core.swap import RestoreCost
from leafage.errors import InvalidParameterError
from leafage.memory import MemoryPlan, check_memory_left, kv_manager, plan_memory, restore_cost, swap_store
from leafage.sim.hardware import Hardware
from leafage.tier.swap_store import FileSwapStore, HostSwapStore

MIB = 1 << 20
KV = 1024  # bytes per token in the plans below


def plan(context: int = 2048, **settings: Any) -> MemoryPlan:
    return plan_memory(
        EngineConfig(**settings), weight_bytes=7, kv_bytes_per_token=KV, context_length=context
    )


@pytest.fixture
def memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 100 * MIB)


def test_the_default_pool_is_40_percent_of_what_is_left(memory_left: None) -> None:
    p = plan()
    assert p.kv_tokens == 40 * MIB // KV // 16 * 16
    assert p.kv_bytes == p.kv_tokens * KV == p.num_blocks * 16 * KV
    assert (p.max_model_len, p.weight_bytes) == (2048, 7)
    assert p.num_largest_requests == 20


def test_the_default_pool_is_4_gib_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 40)
    assert plan().kv_bytes == 4 << 30


def test_a_pool_in_tokens_is_rounded_up_to_blocks() -> None:
    p = plan(kv_cache_tokens=100)
    assert (p.kv_tokens, p.num_blocks) == (112, 7)
    assert p.max_model_len == 112  # the pool is smaller than the model's context


def test_a_pool_in_bytes_is_a_ceiling() -> None:
    assert plan(kv_cache_bytes=33 * KV).kv_tokens == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kv_cache_bytes": 100},
            r"does not hold one block of 16 tokens; got 100; limit: at least 16384 bytes",
        ),
        ({"max_model_len": 4096}, r"beyond the model's context; got 4096; limit: 2048"),
        (
            {"max_model_len": 200, "kv_cache_tokens": 100},
            r"got 200; limit: 112 tokens.*kv_cache_tokens to 200",
        ),
    ],
)
def test_what_cannot_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        plan(**settings)


def test_a_pool_larger_than_the_machine_is_refused(memory_left: None) -> None:
    check_memory_left(plan(kv_cache_bytes=100 * MIB))
    with pytest.raises(
        InvalidParameterError,
        match=r"memory that is left; got \d+; limit: 104857600 bytes\. Lower kv_cache_bytes",
    ):
        check_memory_left(plan(kv_cache_bytes=101 * MIB))


@pytest.mark.real_model
def test_an_engine_asks_for_no_more_than_there_is(assets: Assets) -> None:
    with pytest.raises(InvalidParameterError, match="memory that is left"):
        assemble(EngineConfig(kv_cache_bytes=1 << 55), assets)


@pytest.mark.parametrize("kv", ["paged", "reserved-max", "reserved-oracle-buddy", "reserved-pow2-scattered"])
def test_how_sequences_get_their_kv_cache(kv: str) -> None:
    manager = kv_manager(EngineConfig(kv=kv), plan(kv_cache_tokens=512, kv=kv, max_model_len=100))
    assert isinstance(manager, KVManager if kv == "paged" else ReservedKVManager)
    assert manager.num_blocks == 32
    if isinstance(manager, ReservedKVManager):
        assert manager.max_model_len == 100
        kinds = {"max": FirstFit, "buddy": Buddy, "scattered": Scattered}
        assert type(manager._arena) is kinds[kv.split("-")[-1]]


def test_the_prefix_index_that_is_configured() -> None:
    made = {
        name: kv_manager(EngineConfig(prefix_index=name), plan(kv_cache_tokens=512)).index  # type: ignore[attr-defined]
        for name in INDEXES
    }
    assert made["radix"].eviction_unit == "block" and made["radix-node"].eviction_unit == "node"
    kinds = {name: type(index).__name__ for name, index in made.items()}
    assert kinds == {
        "radix": "RadixTree",
        "radix-node": "RadixTree",
        "hash_chain": "HashChain",
        "none": "NoIndex",
    }


def test_pins_may_hold_a_quarter_where_the_longest_sequence_still_fits_beside_it() -> None:
    assert plan(kv_cache_tokens=16_000).max_pinned_blocks == 250
    tight = plan(kv_cache_tokens=2400)
    assert (tight.max_model_len, tight.max_pinned_blocks) == (2048, 22)
    full = plan(kv_cache_tokens=1600)
    assert (full.max_model_len, full.max_pinned_blocks) == (1600, 0)
    for settings in ({"prefix_index": "none"}, {"kv": "reserved-max"}, {"pinned_share": 0}):
        assert plan(kv_cache_tokens=16_000, **settings).max_pinned_blocks == 0


def test_a_pinned_share_that_is_asked_for_shortens_the_longest_sequence() -> None:
    p = plan(kv_cache_tokens=1600, pinned_share=0.4)
    assert (p.max_pinned_blocks, p.max_model_len) == (40, 960)
    manager = kv_manager(EngineConfig(), p)
    assert manager.max_pinned_blocks == 40 and manager.longest_output(100, 1) == 861
    expected = r"beside pinned_share = 0.4; got 1000; limit: 960 tokens.*kv_cache_tokens to 1667"
    with pytest.raises(InvalidParameterError, match=expected):
        plan(kv_cache_tokens=1600, pinned_share=0.4, max_model_len=1000)


def test_a_swap_space_without_room_for_a_block_is_refused() -> None:
    expected = (
        f"does not hold one block of 16 tokens; got 'swap_bytes = 100'; limit: at least {16 * KV} bytes"
    )
    with pytest.raises(InvalidParameterError, match=expected):
        plan(kv_cache_tokens=1600, swap_bytes=100)


def test_the_swap_space_is_a_quarter_of_the_pool_unless_it_is_set() -> None:
    assert plan(kv_cache_tokens=1600).num_swap_slots == 25
    assert plan(kv_cache_tokens=1600, swap_bytes=3 * 16 * KV + 5).num_swap_slots == 3
    assert plan(kv_cache_tokens=1600, swap_bytes=0).num_swap_slots == 0
    assert plan(kv_cache_tokens=1600, preemption="recompute").num_swap_slots == 0
    assert plan(kv_cache_tokens=1600, kv="reserved-oracle").num_swap_slots == 0


def test_swap_space_is_in_memory_or_in_the_named_file(tmp_path: Any) -> None:
    p = plan(kv_cache_tokens=1600)
    assert isinstance(swap_store(EngineConfig(), p, p.block_bytes), HostSwapStore)
    in_file = swap_store(EngineConfig(swap_path=str(tmp_path / "swap")), p, p.block_bytes)
    assert isinstance(in_file, FileSwapStore)
    in_file.close()


@pytest.mark.real_model
def test_moving_is_cheaper_than_computing_unless_the_disk_is_slow(assets: Assets) -> None:
    program = assets.model.program
    p = plan_memory(
        EngineConfig(kv_cache_tokens=1600),
        weight_bytes=0,
        kv_bytes_per_token=program.kv.bytes_per_token("bfloat16"),
        context_length=2048,
    )

    def cost(**speeds: float) -> RestoreCost:
        numbers = {
            "flops": 3.8e11,
            "compute_efficiency": 0.5,
            "attention_efficiency": 0.4,
            "bandwidth": 4e10,
            "memory_bytes": 1e9,
            "host_bandwidth": 6e9,
            "file_bandwidth": 1e9,
        }
        hardware = Hardware(name="", threads=1, **{**numbers, **speeds})
        return restore_cost(hardware, program, p, num_threads=2, in_file=True)

    assert cost().swap(32) < cost().recompute(512)
    assert cost(file_bandwidth=1e6).swap(32) > cost(file_bandwidth=1e6).recompute(512)
    assert cost(file_bandwidth=0.0).per_block == pytest.approx(2 * p.block_bytes / 6e9)
    assert cost().per_token == pytest.approx(2 * 106.2e6 / 3.8e11, rel=0.01)
    assert cost().per_pair == pytest.approx(4 * 30 * 9 * 64 / 3.04e11)
