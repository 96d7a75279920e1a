"""The two kernels that prefill is made of, alone: matrix products and attention."""

from __future__ import annotations

import statistics
import time

import attention as attention_benchmark
import numpy as np

from leafage.build import Build
from leafage.kernels.native_linear import Linear

PASSES = 5
SECONDS = 2.0  # at most, after the first pass
ATTENTION_CALLS = 20


def gemm(build: Build, num_tokens: int) -> dict[str, float]:
    """All matrix products of the layers for a prompt, in the step sizes of a real one: int8 operations/s.

    The output head is left out: it sees one row of a prompt. Quantizing the activations is part of it.
    """
    program = build.engine.executor.program  # type: ignore[attr-defined]
    ops = [op for op in program.program.ops[: program.program.head_start] if op.kind.value == "linear"]
    matrices = [[program.weights[weight.name] for weight in op.weights] for op in ops]
    rng = np.random.default_rng(0)
    rows = min(num_tokens, build.config.max_num_batched_tokens)
    inputs = {w[0].cols: rng.standard_normal((rows, w[0].cols), dtype=np.float32) for w in matrices}
    outputs = {
        width: np.zeros((rows, width), np.float32) for width in {sum(m.rows for m in w) for w in matrices}
    }
    linear = Linear(build.threads)
    seconds: list[float] = []
    while not seconds or (len(seconds) < PASSES and sum(seconds) < SECONDS):
        began = time.perf_counter()
        for weights in matrices:
            linear.linear(inputs[weights[0].cols], weights, add_to=outputs[sum(w.rows for w in weights)])
        seconds.append(time.perf_counter() - began)
    operations = 2 * rows * sum(w.rows * w.cols for weights in matrices for w in weights)
    return {"operations_per_second": operations / statistics.median(seconds), "rows": rows}


def attention(build: Build, num_tokens: int) -> dict[str, float]:
    """Causal attention of one layer over a prompt of so many tokens: operations/s."""
    program = build.engine.executor.program.program  # type: ignore[attr-defined]
    heads = next(op.params["num_heads"] for op in program.ops if op.kind.value == "attention")
    shape = attention_benchmark.Shape(1, program.kv.num_kv_heads, heads, program.kv.head_dim)
    seconds = attention_benchmark.seconds(
        shape,
        batch=1,
        context=num_tokens,
        rows=num_tokens,
        threads=build.threads,
        block=build.plan.block_size,
        calls=ATTENTION_CALLS,
    )
    operations = attention_benchmark.operations(shape, 1, num_tokens, num_tokens)
    return {"operations_per_second": operations / statistics.median(seconds)}
