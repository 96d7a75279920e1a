"""Time of one layer's attention: decode and prefill, beside what the machine can do.

    python benchmarks/attention.py [--shape smollm2|gemma3|llama1b] [--threads 2] [--block 16] [--kv int8]

Decode walks over as many layers as a step would, so that K and V come from where they would. The floor
of decode is the memory rate. One thread is measured in CPU time.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np

from leafage.kernels import _native
from leafage.kernels.native_attention import time_attention
from leafage.kernels.program import kv_head_bytes
from leafage.kernels.reference_attention import PagedLayer
from leafage.kernels.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's attention."""

    layers: int
    kv_heads: int
    heads: int
    head_dim: int


SHAPES = {
    "smollm2": Shape(30, 3, 9, 64),
    "gemma3": Shape(18, 1, 4, 256),
    "llama1b": Shape(16, 8, 32, 64),
    "llama8b": Shape(32, 8, 32, 128),
}
MAX_BYTES = 1 << 30


def make_step(lengths: list[int], rows: int, tables: np.ndarray) -> StepInputs:
    none = np.zeros(0, np.int32)
    counts = np.full(len(lengths), rows, np.int32)
    return StepInputs.of(
        token_ids=none,
        positions=none,
        slots=none,
        item_rows=np.arange(len(lengths), dtype=np.int32) * rows,
        item_num_rows=counts,
        item_starts=np.array(lengths, np.int32) - counts,
        table_offsets=np.arange(len(lengths), dtype=np.int32) * tables.shape[1],
        tables=np.ascontiguousarray(tables.ravel(), np.int32),
        logit_rows=none,
    )


def seconds(
    shape: Shape,
    *,
    batch: int,
    context: int,
    rows: int,
    threads: int,
    block: int,
    calls: int,
    variant: str = "",
    kv: str = "bfloat16",
    budget: float = 1.5,
) -> list[float]:
    """Times of up to `calls` calls, fewer when they take longer than `budget` seconds together.

    Each of `batch` items computes its last `rows` of `context` tokens.
    """
    blocks = -(-context // block)
    block_bytes = block * bytes_per_token(shape, kv)
    layers = max(1, min(shape.layers, MAX_BYTES // (batch * blocks * block_bytes))) if rows == 1 else 1
    rng = np.random.default_rng(0)
    # 0x3e3e as bf16 is 0.186; as int8 values and scales it is as ordinary.
    pool = np.full((batch * blocks, layers, block_bytes), 0x3E, np.uint8)
    tables = rng.permutation(batch * blocks).reshape(batch, blocks)
    inputs = make_step([context] * batch, rows, tables)
    q = rng.standard_normal((batch * rows, shape.heads * shape.head_dim)).astype(np.float32)
    out = np.zeros_like(q)
    times: list[float] = []
    while len(times) < calls and sum(times) < budget:
        layer = PagedLayer(pool[:, len(times) % layers], block, shape.kv_heads, shape.head_dim, kv)
        times.append(
            time_attention(
                q, layer, inputs, out, scale=shape.head_dim**-0.5, num_threads=threads, variant=variant
            )
        )
    return times


def operations(shape: Shape, batch: int, context: int, rows: int) -> int:
    """Multiplies and adds of the scores and of the weighted sum, of the causal part alone."""
    pairs = batch * sum(range(context - rows + 1, context + 1))
    return 4 * pairs * shape.heads * shape.head_dim


def bytes_per_token(shape: Shape, kv: str) -> int:
    """K and V of one layer."""
    return 2 * shape.kv_heads * kv_head_bytes(kv, shape.head_dim)


def measure(name: str, kv: str, batch: int, context: int, rows: int, args: argparse.Namespace) -> float:
    shape = SHAPES[name]
    calls = max(60, 2 * shape.layers) if rows == 1 else 10
    times = seconds(
        shape,
        batch=batch,
        context=context,
        rows=rows,
        threads=args.threads,
        block=args.block,
        calls=calls,
        variant=args.variant,
        kv=kv,
    )
    best, median = min(times), statistics.median(times)
    gflop = operations(shape, batch, context, rows) / 1e9
    gbytes = batch * context * bytes_per_token(shape, kv) / 1e9
    kind = f"{'decode' if rows == 1 else 'prefill'} {batch:3d} x {context:5d}"
    print(
        f"{kv:8} {kind}   median {median * 1e6:9.1f} us  best {best * 1e6:9.1f} us"
        f"   {gflop / median:7.1f} GFLOP/s   {gbytes / median:7.1f} GB/s"
    )
    return median


def compare(batch: int, context: int, rows: int, args: argparse.Namespace) -> None:
    medians = [measure(args.shape, kv, batch, context, rows, args) for kv in args.kv.split(",")]
    if len(medians) > 1:
        print(" " * 9 + "time over the first: " + ", ".join(f"{m / medians[0]:.2f}" for m in medians[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variant", default=_native.variant())
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--kv", default="bfloat16", help="bfloat16, int8, or both with a comma")
    parser.add_argument("--only", default="", help="decode or prefill")
    args = parser.parse_args()
    bandwidth = _native.measure_bandwidth(256 << 20, args.threads, 5)
    print(f"{args.shape}, {args.variant}, {args.threads} threads, blocks of {args.block}")
    print(f"memory {bandwidth / 1e9:.1f} GB/s")
    if args.only != "prefill":
        for batch in (1, 8, 64):
            for context in (128, 1024, 8192):
                compare(batch, context, 1, args)
    if args.only != "decode":
        for context in (128, 512, 1024):
            compare(1, context, context, args)


if __name__ == "__main__":
    main()
