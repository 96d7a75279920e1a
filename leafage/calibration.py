"""Measures the numbers of a hardware file (`hardware.py`) on this machine, with a loaded model."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from leafage.core.protocols import SwapStore
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError, RequestError
from leafage.hardware import Hardware
from leafage.memory import prompt_work
from leafage.tier.swap_store import FileSwapStore, HostSwapStore

if TYPE_CHECKING:
    from leafage.llm import LLM

NUM_BLOCKS = 64
"""Blocks that a measured transfer moves."""
FEWEST_TOKENS = 256


def calibrate(llm: LLM, *, repetitions: int = 5) -> Hardware:
    """Time prompts of two lengths, and blocks moved to memory and to a file. Best on an idle machine.

    The file lies where `swap_path` says, or in the folder for temporary files.

    Raises:
        InvalidParameterError: max_model_len leaves no room for two lengths.
        RequestError: a block did not come back.
    """
    build = llm.build
    longest = min(build.plan.max_model_len - 1, 2048)
    if longest < 2 * FEWEST_TOKENS:
        raise InvalidParameterError(
            "max_model_len is too small to calibrate",
            value=longest + 1,
            limit=f"at least {2 * FEWEST_TOKENS + 1}",
        )
    program = build.engine.executor.program  # type: ignore[attr-defined]
    ops, flops = prompt_work(program.program)
    ops_rate, flops_rate = _solve(
        [
            (ops * n, flops * n * (n + 1) / 2, _prompt_seconds(llm, n, repetitions))
            for n in (FEWEST_TOKENS, longest)
        ]
    )
    size = program.block_bytes
    folder = Path(build.config.swap_path).expanduser().parent if build.config.swap_path else None
    with tempfile.TemporaryDirectory(dir=folder) as where:
        in_file = FileSwapStore(Path(where) / "calibration", NUM_BLOCKS, size)
        file_bytes = _transfer_rate(in_file, size, repetitions)
        in_file.close()
    return Hardware(
        ops=ops_rate / build.threads,
        attention_flops=flops_rate / build.threads,
        copy_bytes=_transfer_rate(HostSwapStore(NUM_BLOCKS, size), size, repetitions),
        file_bytes=file_bytes,
    )


def _prompt_seconds(llm: LLM, num_tokens: int, repetitions: int) -> float:
    rng = np.random.default_rng(num_tokens)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    seconds = []
    for _ in range(repetitions + 1):  # the first one warms up
        prompt: dict[str, Any] = {
            "prompt_token_ids": rng.integers(0, llm.build.model.vocab_size, num_tokens).tolist()
        }
        start = perf_counter()
        llm.generate(prompt, params, use_tqdm=False)
        seconds.append(perf_counter() - start)
    return statistics.median(seconds[1:])


def _solve(measured: list[tuple[float, float, float]]) -> tuple[float, float]:
    """(ops, attention flops, seconds) of two prompts -> both rates.

    Attention is a few per cent of such prompts: where noise leaves it no time, it counts as fast as the rest.
    """
    (ops_1, flops_1, seconds_1), (ops_2, flops_2, seconds_2) = measured
    determinant = ops_1 * flops_2 - ops_2 * flops_1
    per_op = (seconds_1 * flops_2 - seconds_2 * flops_1) / determinant
    per_flop = (ops_1 * seconds_2 - ops_2 * seconds_1) / determinant
    if per_op <= 0 or per_flop <= 0:
        rate = (ops_2 + flops_2) / seconds_2
        return rate, rate
    return 1 / per_op, 1 / per_flop


def _transfer_rate(store: SwapStore, block_bytes: int, repetitions: int) -> float:
    """Bytes a second, out and in."""
    blocks = np.random.default_rng(0).integers(0, 256, (NUM_BLOCKS, block_bytes), dtype=np.uint8)
    moves: tuple[Callable[[int, memoryview], bool], ...] = (store.save, store.load)
    seconds = []
    for _ in range(repetitions + 1):  # the first one takes the memory from the system
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
