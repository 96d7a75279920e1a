"""Calibrates a hardware file (`sim.hardware`) to this machine, with a loaded model."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from leafage.bench import measure_floors
from leafage.core.protocols import SwapStore
from leafage.errors import RequestError
from leafage.memory import prompt_work
from leafage.resources import available_memory
from leafage.sim.calibrate import Fit, Scenarios, fit, measure
from leafage.sim.hardware import Hardware
from leafage.sim.least_squares import nnls
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.replay import RealEngine, Step
from leafage.tier.swap_store import FileSwapStore, HostSwapStore

if TYPE_CHECKING:
    from leafage.build import Build
    from leafage.llm import LLM

NUM_BLOCKS = 64
"""Blocks that a measured transfer moves."""
REPETITIONS = 5
TRANSFERRED = (1, 4, 16, 64)
"""Tokens of the blocks that are moved."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Progress = Callable[[str], None]


def calibrate(
    llm: LLM, *, name: str | None = None, on_progress: Progress = lambda what: None
) -> tuple[Hardware, Fit]:
    """Time steps of all sizes, and blocks that move to memory and to a file. Best on an idle machine.

    The LLM must be idle. The file lies where `swap_path` says, or in the folder for temporary files.

    Args:
        name: of the hardware; default: the CPU's, with threads and kernels.

    Raises:
        InvalidParameterError: the engine has no room for the measured steps.
        RequestError: a block did not come back.
    """
    build = llm.build
    llm.reset_prefix_cache()
    real, spec = real_engine(build), spec_of(build)
    fitted, held_out = measure(real, Scenarios(real), on_progress=on_progress)
    llm.reset_prefix_cache()
    found = fit(spec, build.plan.block_size, fitted, held_out)
    on_progress("measuring: memory, arithmetic, swap space")
    hardware = _hardware(build, found, fitted, name or _cpu_name(build))
    return hardware, found


def real_engine(build: Build) -> RealEngine:
    """An engine as the simulator's calibration and replays take it."""
    return RealEngine(
        engine=build.engine,
        outputs=build.outputs,
        metrics=build.metrics,
        vocab_size=build.model.vocab_size,
        max_num_batched_tokens=build.config.max_num_batched_tokens,
        max_num_seqs=build.config.max_num_seqs,
        max_model_len=build.plan.max_model_len,
        kv_tokens=build.plan.kv_tokens,
    )


def spec_of(build: Build) -> LLMSpec:
    """The shape of the model that an engine runs, with the bytes that its weights and K/V take."""
    program = build.engine.executor.program.program  # type: ignore[attr-defined]
    spec = LLMSpec.load(str(build.model.path))
    per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    return replace(
        spec,
        name=build.model.name,
        weight_bytes_each=build.plan.weight_bytes / spec.num_params,
        kv_bytes_each=program.kv.bytes_per_token(build.config.kv_dtype) / per_token,
    )


def _hardware(build: Build, found: Fit, steps: list[Step], name: str) -> Hardware:
    """The numbers of the roofline, for other models, beside the fitted costs."""
    floors = measure_floors(build.threads)
    program = build.engine.executor.program  # type: ignore[attr-defined]
    ops, flops = prompt_work(program.program)
    costs = found.costs
    alone = [step for step in steps if step.load.tokens == 1 and step.load.context < 256]
    outside = statistics.median(step.outside for step in alone)
    native = statistics.median(step.seconds for step in alone) - outside
    kv_bytes = program.block_bytes // build.plan.block_size
    host_bandwidth, copy_seconds = _transfer_cost(HostSwapStore, kv_bytes)
    folder = Path(build.config.swap_path).expanduser().parent if build.config.swap_path else None
    with tempfile.TemporaryDirectory(dir=folder) as where:
        file_bandwidth, _ = _transfer_cost(partial(FileSwapStore, Path(where) / "calibration"), kv_bytes)
    return Hardware(
        name=name,
        flops=floors.int8_peak,
        bandwidth=floors.bandwidth,
        memory_bytes=float(available_memory() + build.plan.weight_bytes + build.plan.kv_bytes),
        host_bandwidth=host_bandwidth,
        file_bandwidth=file_bandwidth,
        copy_seconds=copy_seconds,
        compute_efficiency=min(1.0, ops / costs.seconds_per_token / floors.int8_peak),
        attention_efficiency=min(1.0, flops / costs.per_pair / floors.int8_peak) if costs.per_pair else 0.0,
        memory_efficiency=min(1.0, build.plan.weight_bytes / native / floors.bandwidth),
        step_seconds=outside,
        threads=build.threads,
        block_efficiency=block_efficiency(costs.spec, build.config.kv_dtype, build.threads),
        steps=costs,
    )


def _transfer_cost(new_store: Callable[[int, int], SwapStore], kv_bytes: int) -> tuple[float, float]:
    """Bytes a second each way, and seconds on top for each block: of blocks of 1 to 64 tokens."""
    sizes = [tokens * kv_bytes for tokens in TRANSFERRED]
    seconds = np.array([_transfer_seconds(new_store(NUM_BLOCKS, size), size) for size in sizes])
    matrix = np.stack([np.array(sizes, np.float64), np.ones(len(sizes))], axis=1)
    per_byte, each = nnls(matrix / seconds[:, None], np.ones(len(sizes)))
    if per_byte <= 0:  # noise: all of it counts as bandwidth
        return float(sizes[-1] / seconds[-1]), 0.0
    return 1 / float(per_byte), float(each)


def _transfer_seconds(store: SwapStore, block_bytes: int) -> float:
    """Moving a block one way."""
    blocks = np.random.default_rng(0).integers(0, 256, (NUM_BLOCKS, block_bytes), dtype=np.uint8)
    moves: tuple[Callable[[int, memoryview], bool], ...] = (store.save, store.load)
    seconds = []
    for _ in range(REPETITIONS + 1):  # the first one takes the memory from the system
        start = perf_counter()
        for move in moves:
            for slot in range(NUM_BLOCKS):
                if not move(slot, blocks[slot].data):
                    raise RequestError(
                        "a block was lost on its way to the swap space and back",
                        value=f"{block_bytes} bytes",
                        remedy="check the disk that swap_path names",
                    )
        seconds.append(perf_counter() - start)
    if isinstance(store, FileSwapStore):
        store.close()
    return statistics.median(seconds[1:]) / (2 * NUM_BLOCKS)


def block_efficiency(
    spec: LLMSpec, kv_dtype: str, threads: int, *, context: int = 1024
) -> tuple[tuple[int, float, float], ...]:
    """What of its speed our attention keeps with blocks of 1 to 256 tokens in random places, beside one block
    that holds the whole context: (block size, of decode rows, of prompts).

    Small blocks are gathered into tiles of 16 tokens, which contiguous K and V need not be.
    """
    shape = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
    if kv_dtype not in ("bfloat16", "int8"):
        return ()  # the NumPy reference

    def fastest(block_size: int) -> list[float]:
        return [
            _attention_seconds(shape, kv_dtype, threads, block_size, context, batch, rows)
            for batch, rows in ((4, 1), (1, 64))
        ]

    best = {size: np.full(2, np.inf) for size in (*BLOCK_SIZES, context)}
    for _ in range(REPETITIONS):  # taking turns, so that a disturbance hits all sizes
        for size in best:
            best[size] = np.minimum(best[size], fastest(size))
    found = []
    for size in BLOCK_SIZES:
        decode, prompt = np.minimum(1.0, best[context] / best[size])
        found.append((size, float(decode), float(prompt)))
    return tuple(found)


def _attention_seconds(
    shape: tuple[int, int, int],
    kv_dtype: str,
    threads: int,
    block_size: int,
    context: int,
    batch: int,
    rows: int,
) -> float:
    """The fastest of some calls: `batch` items compute their last `rows` of `context` tokens in one layer."""
    from leafage.kernels.native_attention import time_attention
    from leafage.kernels.program import kv_head_bytes
    from leafage.kernels.reference_attention import PagedLayer
    from leafage.kernels.step_inputs import StepInputs

    num_heads, num_kv_heads, head_dim = shape
    blocks = -(-context // block_size)
    rng = np.random.default_rng(0)
    pool = np.full(
        (batch * blocks, 2 * num_kv_heads * kv_head_bytes(kv_dtype, head_dim) * block_size), 0x3E, np.uint8
    )
    none, counts = np.zeros(0, np.int32), np.full(batch, rows, np.int32)
    inputs = StepInputs.of(
        token_ids=none,
        positions=none,
        slots=none,
        item_rows=np.arange(batch, dtype=np.int32) * rows,
        item_num_rows=counts,
        item_starts=np.full(batch, context, np.int32) - counts,
        table_offsets=np.arange(batch, dtype=np.int32) * blocks,
        tables=rng.permutation(batch * blocks).astype(np.int32),
        logit_rows=none,
    )
    q = rng.standard_normal((batch * rows, num_heads * head_dim)).astype(np.float32)
    out = np.zeros_like(q)
    layer = PagedLayer(pool, block_size, num_kv_heads, head_dim, kv_dtype)
    return min(
        time_attention(q, layer, inputs, out, scale=head_dim**-0.5, num_threads=threads)
        for _ in range(20 if rows == 1 else 4)
    )


def _cpu_name(build: Build) -> str:
    """Such as "AMD EPYC, 2 threads, avx2"."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{cpu}, {build.threads} threads, {build.kernels}"
