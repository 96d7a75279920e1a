from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from leafage.config import EngineConfig
from leafage.core.kv_manager import INDEXES
from leafage.core.policy import POLICIES
from leafage.errors import InvalidParameterError


def test_every_field_says_what_it_does() -> None:
    assert len(fields(EngineConfig)) <= 22
    for field in fields(EngineConfig):
        assert field.metadata.get("help"), field.name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 12}, "power of two"),
        ({"block_size": 0}, "block_size is out of range; got 0"),
        ({"threads": 0}, "threads is out of range"),
        ({"threads": "2"}, "threads must be an integer"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
        ({"compute": "bf16"}, "unknown compute; got 'bf16'"),
        ({"kv_cache_dtype": "fp8"}, "unknown kv_cache_dtype; got 'fp8'; limit: bfloat16 or int8"),
        (
            {"kv_cache_dtype": "int8", "compute": "float32"},
            "keeps K and V in float32; got 'kv_cache_dtype = int8'",
        ),
        ({"cache_type_k": "q8_0"}, "did you mean kv_cache_dtype"),
        ({"quantize": "q5"}, "unknown quantize; got 'q5'"),
        ({"kv_cache_bytes": 1, "kv_cache_tokens": 1}, "give one of them"),
        ({"max_num_seqs": 600}, "max_num_batched_tokens = 256"),
        (
            {"prefix_index": "trie"},
            "unknown prefix_index; got 'trie'; limit: radix or radix-node or hash_chain or none",
        ),
        ({"kv": "reserved"}, "unknown kv; got 'reserved'; limit: paged or reserved-max or .*oracle-buddy"),
        ({"pinned_share": 1.0}, "pinned_share is out of range; got 1.0; limit: 0 to 0.9"),
        ({"max_seqs": 3}, "did you mean max_num_seqs"),
        ({"policy": "sjf"}, "unknown policy; got 'sjf'; limit: fcfs or first_fit or"),
        ({"scheduling_policy": "priority"}, "did you mean policy"),
        ({"enable_prefix_caching": True}, "did you mean prefix_index"),
        ({"prefix_cache": False}, "did you mean prefix_index"),
        ({"gpu_memory_utilization": 0.9}, "kv_cache_bytes"),
    ],
)
def test_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"(?i){message}"):
        EngineConfig.from_kwargs(**settings)


RESERVED = {"kv": "reserved-max"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (RESERVED | {"prefix_index": "radix-node"}, "prefix_index = radix-node, kv = reserved-max"),
        (RESERVED | {"prefix_index": "hash_chain"}, "prefix_index = hash_chain, kv = reserved-max"),
        (RESERVED | {"policy": "longest_prefix"}, "policy = longest_prefix, kv = reserved-max"),
        (RESERVED | {"pinned_share": 0.1}, "pinned_share = 0.1, kv = reserved-max"),
        (RESERVED | {"preemption": "swap"}, "preemption = swap, kv = reserved-max"),
        (RESERVED | {"swap_bytes": 1}, "swap_bytes = 1, kv = reserved-max"),
        (RESERVED | {"swap_path": "file"}, "swap_path = file, kv = reserved-max"),
        (
            {"prefix_index": "none", "policy": "longest_prefix"},
            "policy = longest_prefix, prefix_index = none",
        ),
        ({"prefix_index": "none", "pinned_share": 0.1}, "pinned_share = 0.1, prefix_index = none"),
        ({"preemption": "recompute", "swap_bytes": 1}, "swap_bytes = 1, preemption = recompute"),
        ({"preemption": "recompute", "swap_path": "file"}, "swap_path = file, preemption = recompute"),
        ({"swap_bytes": 0, "preemption": "swap"}, "preemption = swap, swap_bytes = 0"),
        ({"swap_bytes": 0, "swap_path": "file"}, "swap_path = file, swap_bytes = 0"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    name, other = (word.split(" =")[0] for word in message.split(", "))
    expected = f"^{name} has no effect with this {other}; got '{message}'. Leave {name} at its default, or"
    with pytest.raises(InvalidParameterError, match=expected):
        EngineConfig.from_kwargs(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        RESERVED | {"prefix_index": "none", "swap_bytes": 0, "pinned_share": 0, "preemption": "recompute"},
        {"prefix_index": "none", "policy": "depth_first", "pinned_share": 0},
        {"prefix_index": "radix-node", "pinned_share": 0.1, "policy": "longest_prefix"},
        {"preemption": "recompute", "swap_bytes": 0},
        {"swap_bytes": 1, "swap_path": "file", "preemption": "swap"},
    ],
)
def test_settings_that_say_the_same_go_together(settings: dict[str, Any]) -> None:
    assert all(
        getattr(EngineConfig.from_kwargs(**settings), name) == value for name, value in settings.items()
    )


def test_frozen() -> None:
    config = EngineConfig.from_kwargs(model="x", threads=2)
    with pytest.raises(FrozenInstanceError):
        config.threads = 3  # type: ignore[misc]


def test_its_choices_are_those_that_the_core_has() -> None:
    for name in POLICIES:
        EngineConfig(policy=name)
    for name in INDEXES:
        EngineConfig(prefix_index=name)
    for field, names in (("policy", POLICIES), ("prefix_index", INDEXES)):
        with pytest.raises(InvalidParameterError, match=" or ".join(names)):
            EngineConfig.from_kwargs(**{field: "other"})
