"""Calibrates a hardware file (`sim.hardware`) to this machine, with a loaded model."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
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
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.replay import RealEngine, Step
from leafage.tier.swap_store import FileSwapStore, HostSwapStore

if TYPE_CHECKING:
    from leafage.build import Build
    from leafage.llm import LLM

NUM_BLOCKS = 64
"""Blocks that a measured transfer moves."""
REPETITIONS = 5
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
    from leafage.kernels.program import Kind

    program = build.engine.executor.program.program  # type: ignore[attr-defined]
    body, head = program.ops[: program.head_start], program.ops[program.head_start :]
    linear = [weight for op in body if op.kind is Kind.LINEAR for weight in op.weights]
    hidden = program.buffers[0].width
    heads = next(op.params["num_heads"] for op in body if op.kind is Kind.ATTENTION)
    embedded = next(op.weights[0].name for op in body if op.kind is Kind.EMBED)
    out = [weight for op in head if op.kind is Kind.LINEAR for weight in op.weights]
    kv = program.kv
    attention = 2 * hidden * (heads + kv.num_kv_heads) * kv.head_dim
    mlp = sum(weight.rows * weight.cols for weight in linear) // kv.num_layers - attention
    spec = LLMSpec(
        name=build.model.name,
        num_layers=kv.num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv.num_kv_heads,
        head_dim=kv.head_dim,
        intermediate_size=mlp // (3 * hidden),
        vocab_size=program.vocab_size,
        context_length=build.model.context_length,
        tied_embeddings=out[0].name == embedded,
        kv_bytes_each=kv.bytes_per_token(build.config.kv_dtype)
        / (2 * kv.num_layers * kv.num_kv_heads * kv.head_dim),
    )
    return replace(spec, weight_bytes_each=build.plan.weight_bytes / spec.num_params)


def _hardware(build: Build, found: Fit, steps: list[Step], name: str) -> Hardware:
    """The numbers of the roofline, for other models, beside the fitted costs."""
    floors = measure_floors(build.threads)
    program = build.engine.executor.program  # type: ignore[attr-defined]
    ops, flops = prompt_work(program.program)
    costs = found.costs
    alone = [step for step in steps if step.load.tokens == 1 and step.load.context < 256]
    outside = statistics.median(step.outside for step in alone)
    native = statistics.median(step.seconds for step in alone) - outside
    size = program.block_bytes
    folder = Path(build.config.swap_path).expanduser().parent if build.config.swap_path else None
    with tempfile.TemporaryDirectory(dir=folder) as where:
        in_file = FileSwapStore(Path(where) / "calibration", NUM_BLOCKS, size)
        file_bandwidth = _transfer_rate(in_file, size)
        in_file.close()
    return Hardware(
        name=name,
        flops=floors.int8_peak,
        bandwidth=floors.bandwidth,
        memory_bytes=float(available_memory() + build.plan.weight_bytes + build.plan.kv_bytes),
        host_bandwidth=_transfer_rate(HostSwapStore(NUM_BLOCKS, size), size),
        file_bandwidth=file_bandwidth,
        copy_seconds=0.0,
        compute_efficiency=min(1.0, ops / costs.seconds_per_token / floors.int8_peak),
        attention_efficiency=min(1.0, flops / costs.per_pair / floors.int8_peak) if costs.per_pair else 0.0,
        memory_efficiency=min(1.0, build.plan.weight_bytes / native / floors.bandwidth),
        step_seconds=outside,
        threads=build.threads,
        steps=costs,
    )


def _transfer_rate(store: SwapStore, block_bytes: int) -> float:
    """Bytes a second, out and in."""
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
    return 2 * blocks.nbytes / statistics.median(seconds[1:])


def _cpu_name(build: Build) -> str:
    """Such as "AMD EPYC, 2 threads, avx2"."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{cpu}, {build.threads} threads, {build.kernels}"
