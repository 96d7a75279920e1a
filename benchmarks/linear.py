"""How close `linear` comes to the machine: GOP/s and GB/s per shape, weight type, batch and instruction set.

    python benchmarks/linear.py --types Q4_1 Q8_0 --rows 1 16 512 --threads 2

GB/s counts the packed weights once per call, GOP/s two operations per multiply-add. Up to 64 rows,
`--footprint` megabytes of weights are visited in turn, so that none stays in a cache nearer than a whole
model would.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from leafage.kernels import _native
from leafage.kernels.native_linear import Linear

SHAPES = {
    "smollm2": [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)],
    "llama1b": [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)],
}
BLOCK_BYTES = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144),
    "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
}  # fmt: skip


def weights_of(dtype: str, rows: int, cols: int, footprint: float) -> list[_native.PackedWeight]:
    block, size = BLOCK_BYTES[dtype]
    raw = np.zeros((rows * cols // block, size), np.uint8)
    raw[:, size // 2 :] = 0x11  # ordinary numbers in every type: half 0x1111, float 1.1e-28
    if dtype == "MXFP4":
        raw[:, 0] = 120
    count = max(1, int(footprint * 1e6 / raw.nbytes))
    return [_native.PackedWeight(dtype, rows, cols, raw.ravel()) for _ in range(count)]


def seconds(
    line: Linear,
    x: np.ndarray,
    weights: list[_native.PackedWeight],
    budget: float,
    cpu: bool,
    precise: bool,
) -> float:
    """Best time of one call."""
    clock = time.process_time if cpu else time.perf_counter
    memory = np.zeros(len(x) * weights[0].rows + 16, np.float32)
    start_at = -memory.ctypes.data % 64 // 4  # on a cache line, as a program's buffers are
    out = memory[start_at : start_at + len(x) * weights[0].rows].reshape(len(x), -1)
    line.repeat(x, weights[:1], out, 1, precise)
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < budget:
        start = clock()
        line.repeat(x, weights, out, 1, precise)
        best = min(best, (clock() - start) / len(weights))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SHAPES, default="smollm2")
    parser.add_argument(
        "--shapes", nargs="+", metavar="OUTxIN", help="instead of a model's, such as 2048x2048"
    )
    parser.add_argument("--types", nargs="+", default=["Q4_1", "Q8_0"], choices=BLOCK_BYTES, metavar="TYPE")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 512])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--variants", nargs="+", default=[_native.variant()], choices=_native.variants())
    parser.add_argument("--footprint", type=float, default=64, help="MB of weights per shape (default: 64)")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per measurement (default: 0.3)")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time (busy machine, one thread)")
    parser.add_argument("--no-amx", action="store_true", help="avx512 without AMX tiles")
    parser.add_argument("--precise", action="store_true", help="as the output head")
    args = parser.parse_args()
    _native.use_amx(not args.no_amx)
    print(
        f"{'variant':8} {'type':6} {'shape':>12} {'threads':>7} {'M':>5} {'us':>9} {'GB/s':>7} {'GOP/s':>7}"
    )
    shapes = SHAPES[args.model]
    if args.shapes:
        shapes = [(int(rows), int(cols)) for rows, _, cols in (shape.partition("x") for shape in args.shapes)]
    rng = np.random.default_rng(0)
    for dtype in args.types:
        for rows, cols in shapes:
            weights = weights_of(dtype, rows, cols, args.footprint)
            for variant in args.variants:
                _native.set_variant(variant)
                for threads in args.threads:
                    line = Linear(threads)
                    for m in args.rows:
                        x = rng.standard_normal((m, cols), dtype=np.float32)
                        few = weights if m <= 64 else weights[:1]
                        t = seconds(line, x, few, args.budget, args.cpu_time, args.precise)
                        rate, ops = weights[0].nbytes / t / 1e9, 2 * m * rows * cols / t / 1e9
                        shape = f"{rows}x{cols}"
                        print(
                            f"{variant:8} {dtype:6} {shape:>12} {threads:7} {m:5} "
                            f"{t * 1e6:9.1f} {rate:7.1f} {ops:7.0f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
