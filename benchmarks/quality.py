"""How far the fast kernels are from float32 arithmetic over the same weights: perplexity, top-1, divergence.

    python benchmarks/quality.py                              # both models, the default kernels and KV type
    python benchmarks/quality.py --kernels avx512 avx2 plain --kv 16 8 --llamacpp DIR --json quality.json

The text (data/economies.txt, see data/README.md) is cut into windows of 1,024 tokens; the first token of each
is BOS where the model declares one, as in llama-perplexity. In each window every position but the last
predicts the token that follows. The reference is `compute="float32"`: kernels/reference.py on dequantized
float32 weights with float32 K/V. Both sides run in lockstep, 64 positions at a time: nothing large is kept.

`--llamacpp DIR` (the folder with llama-perplexity and llama-quantize) adds llama.cpp's figures by the same
definition: its default settings on the same file, against the file dequantized to F32, with float32 K/V and
without flash attention. It scores only the second half of each window, so ours are repeated for these
positions. Exits with 1 when the default kernels with the default KV type miss a limit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Before NumPy loads: BLAS threads that wait for a busy CPU slow the reference down many times.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from leafage import store
from leafage.build import assemble, load_assets
from leafage.config import EngineConfig
from leafage.kernels import _native
from leafage.kernels.step_inputs import StepInputs
from leafage.resources import available_cpus

TEXT = Path(__file__).parent / "data" / "economies.txt"
MODELS = ["smollm2", "gemma3-270m"]
WINDOW = 1024
KV_SETTINGS: dict[int, dict[str, Any]] = {16: {}, 8: {"kv_cache_dtype": "int8"}}
MAX_PERPLEXITY_CHANGE = 0.005
MIN_TOP1 = 0.97


@dataclass(frozen=True)
class Figures:
    """One side against its float32 reference, over a number of positions.

    Attributes:
        perplexity, reference_perplexity: exp of the mean negative log-likelihood of the next token.
        ratio, ratio_error: perplexity over the reference's; its standard error (positions as independent).
        top1: share of positions where both hold the same token for the likeliest.
        kl_mean, kl_p999: Kullback-Leibler divergence KL(reference || this side), in nats.
    """

    positions: int
    perplexity: float
    reference_perplexity: float
    ratio: float
    ratio_error: float
    top1: float
    kl_mean: float
    kl_p999: float

    def missed(self) -> list[str]:
        """The limits that these figures miss."""
        found = []
        if abs(self.ratio - 1) > MAX_PERPLEXITY_CHANGE:
            found.append(f"perplexity {self.ratio - 1:+.2%}, at most {MAX_PERPLEXITY_CHANGE:.1%} wanted")
        if self.top1 < MIN_TOP1:
            found.append(f"top-1 {self.top1:.2%}, at least {MIN_TOP1:.0%} wanted")
        return found


@dataclass
class Positions:
    """What was seen at each position; float64 [n] arrays in the order added."""

    nll: list[np.ndarray] = field(default_factory=list)
    reference_nll: list[np.ndarray] = field(default_factory=list)
    same_top: list[np.ndarray] = field(default_factory=list)
    kl: list[np.ndarray] = field(default_factory=list)

    def add(self, reference: Reference, logits: np.ndarray) -> None:
        """Compare logits [n, vocab] of the same positions."""
        log_sum = log_sum_exp(logits)
        rows = np.arange(len(logits))
        self.nll.append(log_sum - logits[rows, reference.targets])
        self.reference_nll.append(reference.nll)
        self.same_top.append(logits.argmax(axis=1) == reference.top)
        # sum p (log p - log q), where log p = x - log_sum; p sums to 1.
        difference = (reference.probabilities * (reference.logits - logits)).sum(axis=1, dtype=np.float64)
        self.kl.append(difference + log_sum - reference.log_sum)

    def figures(self, keep: np.ndarray | slice = slice(None)) -> Figures:
        """Summed up over the positions that `keep` (a mask or slice) selects."""
        nll, base = np.concatenate(self.nll)[keep], np.concatenate(self.reference_nll)[keep]
        kl = np.concatenate(self.kl)[keep]
        ratio = math.exp(nll.mean() - base.mean())
        return Figures(
            positions=len(nll),
            perplexity=math.exp(nll.mean()),
            reference_perplexity=math.exp(base.mean()),
            ratio=ratio,
            ratio_error=ratio * float((nll - base).std()) / math.sqrt(len(nll)),
            top1=float(np.concatenate(self.same_top)[keep].mean()),
            kl_mean=float(kl.mean()),
            kl_p999=float(np.quantile(kl, 0.999)),
        )


class Reference:
    """The reference's view of some positions: logits [n, vocab] and what is derived of them once."""

    def __init__(self, logits: np.ndarray, targets: np.ndarray) -> None:
        self.logits, self.targets = logits, targets
        self.log_sum = log_sum_exp(logits)
        self.nll = self.log_sum - logits[np.arange(len(logits)), targets]
        self.top = logits.argmax(axis=1)
        self.probabilities = np.exp(logits - self.log_sum[:, None].astype(np.float32))


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """log(sum(exp(row))) of float32 [n, vocab], float64 [n]."""
    highest = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - highest).sum(axis=1, dtype=np.float64)
    result: np.ndarray = np.log(total) + highest[:, 0]
    return result


def windows_of(tokens: Sequence[int], window: int, bos_id: int | None) -> list[list[int]]:
    """Whole windows of a text; BOS takes the place of each one's first token where there is a BOS."""
    found = []
    for start in range(0, len(tokens) - window + 1, window):
        part = list(tokens[start : start + window])
        if bos_id is not None:
            part[0] = bos_id
        found.append(part)
    return found


def second_half(num_windows: int, window: int, limit: int) -> np.ndarray:
    """Mask of the positions that llama-perplexity scores in the first `limit` of all windows' positions."""
    scored = np.zeros((num_windows, window - 1), bool)
    scored[:limit, window // 2 :] = True
    return scored.ravel()


class Side:
    """An engine's program with room for one window. `variant` None: the float32 reference."""

    def __init__(self, model: str, window: int, threads: int, variant: str | None = None, kv: int = 16):
        self.variant = variant
        self.name = "float32" if variant is None else f"{variant}, {kv}-bit KV"
        settings = KV_SETTINGS[kv] | {"compute": "float32" if variant is None else "fast"}
        config = EngineConfig.from_kwargs(
            model=model,
            threads=threads,
            kv_cache_tokens=window,
            max_num_batched_tokens=max(window, 256),
            max_model_len=window,
            **settings,
        )
        self._choose()
        assets = load_assets(config)
        self.build = assemble(config, assets)
        self.program: Any = self.build.engine.executor.program  # type: ignore[attr-defined]
        self.seconds = 0.0

    def forward(self, inputs: StepInputs) -> Iterator[np.ndarray]:
        """Logits of the step's logit rows, in slices that the next one overwrites."""
        slices = self.program.forward(inputs)
        while True:
            self._choose()  # the sides take turns
            began = time.perf_counter()
            found = next(slices, None)
            self.seconds += time.perf_counter() - began
            if found is None:
                return
            yield found[1]

    def _choose(self) -> None:
        if self.variant is not None:
            _native.set_variant(self.variant)


def step_of(window: Sequence[int], block_size: int) -> StepInputs:
    """One sequence from position 0 on, logits for every position that has a successor."""
    num = len(window)

    def i32(values: Any) -> np.ndarray:
        return np.ascontiguousarray(values, dtype=np.int32)

    return StepInputs.of(
        token_ids=i32(window),
        positions=i32(range(num)),
        slots=i32(range(num)),
        item_rows=i32([0]),
        item_num_rows=i32([num]),
        item_starts=i32([0]),
        table_offsets=i32([0]),
        tables=i32(range(-(-num // block_size))),
        logit_rows=i32(range(num - 1)),
    )


def measure(reference: Side, sides: Sequence[Side], windows: Sequence[Sequence[int]]) -> list[Positions]:
    """Run all windows through all sides in lockstep."""
    seen = [Positions() for _ in sides]
    for number, window in enumerate(windows):
        inputs = step_of(window, reference.build.config.block_size)
        first = 0
        for logits, *others in zip(*(s.forward(inputs) for s in (reference, *sides)), strict=True):
            targets = np.asarray(window[first + 1 : first + 1 + len(logits)])
            view = Reference(logits, targets)
            for positions, theirs in zip(seen, others, strict=True):
                positions.add(view, theirs)
            first += len(logits)
        done = ", ".join(f"{s.name} {s.seconds:.0f} s" for s in (reference, *sides))
        note(f"window {number + 1} of {len(windows)} ({done})")
    return seen


# What llama-perplexity prints; "+/-" is the standard error.
_NUMBER = r"\s*:\s*(-?[\d.]+)"
_LLAMACPP_LINES = {
    "perplexity": rf"Mean PPL\(Q\){_NUMBER}",
    "reference_perplexity": rf"Mean PPL\(base\){_NUMBER}",
    "ratio": rf"Mean PPL\(Q\)/PPL\(base\){_NUMBER}",
    "ratio_error": rf"Mean PPL\(Q\)/PPL\(base\){_NUMBER} ±\s*([\d.]+)",
    "top1": rf"Same top p{_NUMBER}",
    "kl_mean": rf"Mean\s+KLD{_NUMBER}",
    "kl_p999": rf"99\.9%\s+KLD{_NUMBER}",
}


def parse_llamacpp(text: str, positions: int) -> Figures:
    """Figures from the output of `llama-perplexity --kl-divergence`.

    Raises:
        ValueError: a line is missing.
    """
    values: dict[str, float] = {}
    for name, pattern in _LLAMACPP_LINES.items():
        match = re.search(pattern, text)
        if match is None:
            raise ValueError(f"llama-perplexity printed no line like {pattern!r}:\n{text[-2000:]}")
        values[name] = float(match.groups()[-1])
    values["top1"] /= 100
    return Figures(positions=positions, **values)


def run_llamacpp(folder: Path, model: Path, window: int, num_windows: int, threads: int) -> Figures:
    """llama.cpp's default settings on the file against float32 arithmetic over the same weights."""
    common = ["-f", TEXT, "-c", window, "-b", window, "-t", threads, "--chunks", num_windows]
    with tempfile.TemporaryDirectory(prefix="leafage-quality-") as work:
        plain, base = Path(work) / "f32.gguf", Path(work) / "base"
        _call(folder / "llama-quantize", "--allow-requantize", model, plain, "F32")
        note("llama.cpp in float32")
        exact = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
        _call(folder / "llama-perplexity", "-m", plain, *common, *exact, "--save-all-logits", base)
        note("llama.cpp with its defaults")
        against = ["--kl-divergence", "--kl-divergence-base", base]
        printed = _call(folder / "llama-perplexity", "-m", model, *common, *against)
    return parse_llamacpp(printed, num_windows * (window - 1 - window // 2))


def _call(*words: Any) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise SystemExit(f"{words[0]} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


def row(name: str, f: Figures) -> str:
    return (
        f"{name:28} {f.perplexity:10.4f} {f.ratio - 1:+9.3%} ±{f.ratio_error:6.3%} {f.top1:9.2%}"
        f" {f.kl_mean:9.5f} {f.kl_p999:9.4f}"
    )


HEADER = f"{'':28} {'perplexity':>10} {'to float32':>18} {'top-1':>9} {'KL mean':>9} {'KL P99.9':>9}"


def report(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a model and print its table; what goes into the JSON file."""
    threads = args.threads or available_cpus()
    path = store.resolve(name)
    reference = Side(name, args.window, threads)
    sides = [Side(name, args.window, threads, v, kv) for v in args.kernels for kv in args.kv]
    tokenizer = reference.build.tokenizer
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    windows = windows_of(tokens, args.window, bos_id)
    if args.tokens is not None:
        windows = windows[: max(1, args.tokens // args.window)]
    seen = measure(reference, sides, windows)
    figures = {side.name: positions.figures() for side, positions in zip(sides, seen, strict=True)}
    exact = next(iter(figures.values())).reference_perplexity

    print(f"\n{name}: {len(windows)} windows of {args.window} tokens, BOS first: {bos_id is not None}")
    print(HEADER)
    print(f"{'float32':28} {exact:10.4f}")
    for side, f in figures.items():
        print(row(side, f))
    result: dict[str, Any] = {
        "windows": len(windows),
        "window": args.window,
        "bos": bos_id is not None,
        "leafage": {side: asdict(f) for side, f in figures.items()},
        "seconds": {side.name: side.seconds for side in (reference, *sides)},
    }
    if args.llamacpp:
        limit = min(len(windows), args.llamacpp_windows)
        half = second_half(len(windows), args.window, limit)
        halves = {side.name: positions.figures(half) for side, positions in zip(sides, seen, strict=True)}
        theirs = run_llamacpp(args.llamacpp, path, args.window, limit, threads)
        print(f"second halves of the first {limit} windows, as llama-perplexity scores:")
        print(f"{'float32, Leafage':28} {next(iter(halves.values())).reference_perplexity:10.4f}")
        print(f"{'float32, llama.cpp':28} {theirs.reference_perplexity:10.4f}")
        for side, f in halves.items():
            print(row(side, f))
        print(row("llama.cpp, defaults", theirs))
        result["second_half"] = {side: asdict(f) for side, f in halves.items()}
        result["llamacpp"] = asdict(theirs)
    result["missed"] = next(iter(figures.values())).missed()
    for miss in result["missed"]:
        print(f"MISSED ({next(iter(figures))}): {miss}")
    return result


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = _native.variants()
    parser.add_argument("--models", nargs="+", default=MODELS, help="aliases or paths")
    parser.add_argument("--tokens", type=int, help="at most this many tokens (default: the whole text)")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--kernels", nargs="+", choices=here, default=here[:1])
    parser.add_argument("--kv", nargs="+", type=int, choices=sorted(KV_SETTINGS), default=[16], help="bits")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--llamacpp", type=Path, default=os.environ.get("LEAFAGE_LLAMACPP"), metavar="DIR")
    parser.add_argument(
        "--llamacpp-windows", type=int, default=12, help="it is slow, and needs 0.3 GB a window"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.llamacpp is not None and not (args.llamacpp / "llama-perplexity").is_file():
        parser.error("--llamacpp must be the folder with llama-perplexity and llama-quantize")
    if args.window < 2:
        parser.error(f"--window is {args.window}, at least 2 tokens are needed to predict one")
    results = {name: report(name, args) for name in args.models}
    if args.json:
        about = {"machine": platform.processor() or platform.machine(), "features": _native.cpu_features()}
        args.json.write_text(json.dumps(about | {"models": results}, indent=2) + "\n")
    sys.exit(1 if any(result["missed"] for result in results.values()) else 0)


if __name__ == "__main__":
    main()
