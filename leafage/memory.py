"""Where the memory of an engine goes: KV pool and swap space, and what preempted requests cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leafage.config import EngineConfig
from leafage.core.kv_manager import KVManager
from leafage.core.protocols import KV, SwapStore
from leafage.core.reserved import ReservedKVManager
from leafage.core.swap import RestoreCost, SwapSlots
from leafage.errors import InvalidParameterError
from leafage.resources import available_memory
from leafage.sim.hardware import Hardware

if TYPE_CHECKING:
    from leafage.kernels.program import Program

GIB = 1 << 30
KV_POOL_CEILING = 4 * GIB
KV_POOL_SHARE = 0.4
SWAP_SHARE = 0.25
PINNED_SHARE = 0.25
"""Of the KV pool, as far as a sequence of max_model_len still fits beside it."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes.

    Attributes:
        weight_bytes: memory of the weights.
        kv_bytes: memory of the KV pool when all of it is in use.
        kv_tokens: tokens it holds.
        num_blocks, block_size: the same in blocks.
        max_model_len: most tokens of one sequence.
        context_length: tokens the model was trained for.
        num_swap_slots: blocks of preempted requests that the swap space holds.
        max_pinned_blocks: blocks of the pool that pins may hold and requests cannot count on.
    """

    weight_bytes: int
    kv_bytes: int
    kv_tokens: int
    num_blocks: int
    block_size: int
    max_model_len: int
    context_length: int
    num_swap_slots: int = 0
    max_pinned_blocks: int = 0

    @property
    def block_bytes(self) -> int:
        """K and V of a block, all layers."""
        return self.kv_bytes // self.num_blocks

    @property
    def swap_bytes(self) -> int:
        """Memory, or disk, of the swap space when all of it is in use."""
        return self.num_swap_slots * self.block_bytes

    @property
    def num_largest_requests(self) -> int:
        """How many requests of max_model_len tokens fit at once."""
        return self.num_blocks // -(-self.max_model_len // self.block_size)


def plan_memory(
    config: EngineConfig, *, weight_bytes: int, kv_bytes_per_token: int, context_length: int
) -> MemoryPlan:
    """Size the KV pool and the longest sequence. Call it when the weights are in memory.

    Raises:
        InvalidParameterError: max_model_len is beyond the model's context or the pool, or the pool holds no
            block.
    """
    bytes_per_block = kv_bytes_per_token * config.block_size
    if config.kv_cache_tokens is not None:
        pool = -(-config.kv_cache_tokens // config.block_size) * bytes_per_block
    elif config.kv_cache_bytes is not None:
        pool = config.kv_cache_bytes
    else:
        pool = min(KV_POOL_CEILING, int(KV_POOL_SHARE * available_memory()))
    num_blocks = pool // bytes_per_block
    if num_blocks < 1:
        raise InvalidParameterError(
            f"the KV pool does not hold one block of {config.block_size} tokens",
            value=pool,
            limit=f"at least {bytes_per_block} bytes",
            remedy="raise kv_cache_bytes, or free memory",
        )
    kv_tokens = num_blocks * config.block_size
    max_pinned_blocks = int((config.pinned_share or 0.0) * num_blocks)
    countable = kv_tokens - max_pinned_blocks * config.block_size
    max_model_len = config.max_model_len
    if max_model_len is None:
        max_model_len = min(context_length, countable)
    elif max_model_len > context_length:
        raise InvalidParameterError(
            "max_model_len is beyond the model's context",
            value=max_model_len,
            limit=context_length,
            remedy="lower max_model_len: the model was not trained for longer texts",
        )
    elif max_model_len > countable:
        beside = f" beside pinned_share = {config.pinned_share}" if config.pinned_share else ""
        enough = -(-max_model_len * kv_tokens // countable)
        raise InvalidParameterError(
            f"max_model_len does not fit into the KV pool{beside}",
            value=max_model_len,
            limit=f"{countable} tokens",
            remedy=f"lower max_model_len or raise kv_cache_tokens to {enough}",
        )
    if config.pinned_share is None and config.has_prefix_cache:
        spare = num_blocks - -(-max_model_len // config.block_size)
        max_pinned_blocks = min(int(PINNED_SHARE * num_blocks), spare)
    swap_bytes = config.swap_bytes
    if swap_bytes is None:
        swap_bytes = 0 if config.preemption == "recompute" else int(SWAP_SHARE * num_blocks * bytes_per_block)
    if config.swap_bytes and swap_bytes < bytes_per_block:
        raise InvalidParameterError(
            f"the swap space does not hold one block of {config.block_size} tokens",
            value=f"swap_bytes = {swap_bytes}",
            limit=f"at least {bytes_per_block} bytes, or 0",
            remedy="raise swap_bytes, or use preemption 'recompute'",
        )
    return MemoryPlan(
        weight_bytes=weight_bytes,
        kv_bytes=num_blocks * bytes_per_block,
        kv_tokens=kv_tokens,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=max_model_len,
        context_length=context_length,
        num_swap_slots=swap_bytes // bytes_per_block if config.kv == "paged" else 0,
        max_pinned_blocks=max_pinned_blocks,
    )


def check_memory_left(plan: MemoryPlan) -> None:
    """Whether this machine can hold the KV pool, whose memory is taken only as requests fill it.

    Raises:
        InvalidParameterError: it is larger than the memory that is left.
    """
    left = available_memory()
    if plan.kv_bytes > left:
        raise InvalidParameterError(
            "the KV pool is larger than the memory that is left",
            value=plan.kv_bytes,
            limit=f"{left} bytes",
            remedy="lower kv_cache_bytes or kv_cache_tokens, or free memory",
        )


def kv_manager(config: EngineConfig, plan: MemoryPlan) -> KV:
    """The bookkeeping of the KV cache, as configured."""
    if config.kv == "paged":
        return KVManager(
            plan.num_blocks,
            plan.block_size,
            config.prefix_index,
            max_pinned_blocks=plan.max_pinned_blocks,
            swap_space=SwapSlots(plan.num_swap_slots),
        )
    _, reservation, *allocator = config.kv.split("-")
    return ReservedKVManager(
        plan.num_blocks,
        plan.block_size,
        reservation,
        max_model_len=plan.max_model_len,
        allocator=allocator[0] if allocator else "first-fit",
    )


def check_swap_path(config: EngineConfig) -> None:
    """Make the file for the swap space, without room in it, and let it go.

    Raises:
        InvalidParameterError: it cannot be made.
    """
    from leafage.tier.swap_store import FileSwapStore

    if config.swap_path is not None:
        FileSwapStore(config.swap_path, 0, 0).close()


def swap_store(config: EngineConfig, plan: MemoryPlan, block_bytes: int) -> SwapStore:
    """The data of the swap space, in memory or in the file that the configuration names.

    Raises:
        InvalidParameterError: the file cannot be made.
    """
    from leafage.tier.swap_store import FileSwapStore, HostSwapStore

    if config.swap_path is None:
        return HostSwapStore(plan.num_swap_slots, block_bytes)
    return FileSwapStore(config.swap_path, plan.num_swap_slots, block_bytes)


def prompt_work(program: Program) -> tuple[int, int]:
    """Multiplications and additions of a prompt: in matrix products per token, and in attention per token and
    earlier token."""
    from leafage.kernels.program import Kind

    body = program.ops[: program.head_start]
    weights = sum(w.rows * w.cols for op in body if op.kind is not Kind.EMBED for w in op.weights)
    heads = sum(op.params["num_heads"] for op in body if op.kind is Kind.ATTENTION)
    return 2 * weights, 4 * heads * program.kv.head_dim


def restore_cost(
    hardware: Hardware, program: Program, plan: MemoryPlan, *, num_threads: int, in_file: bool
) -> RestoreCost:
    """What `preemption = auto` compares, on so many threads of the hardware."""
    ops, flops = prompt_work(program)
    hardware = hardware.with_threads(num_threads)
    bandwidth = (hardware.file_bandwidth if in_file else 0.0) or hardware.host_bandwidth
    return RestoreCost(
        per_block=2 * plan.block_bytes / bandwidth,
        per_transfer=hardware.copy_seconds,
        per_token=ops / hardware.product_flops,
        per_pair=flops / hardware.attention_flops,
    )
