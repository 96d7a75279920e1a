"""Leafage beside llama.cpp on the same file, interleaved: decode, prefill, cold start, memory.

    python benchmarks/llamacpp.py --llamacpp llama.cpp/build/bin --repetitions 5

`--llamacpp` (or LEAFAGE_LLAMACPP) is the folder with llama-bench, llama-server and llama-quantize. Each
repetition runs one side right after the other, so that both see the same machine; what counts is the ratio of
a repetition, given as median and range. `--formats Q8_0 Q4_0` adds llama.cpp on its better formats, made from
the same file with llama-quantize: Q4_1, the default model's format, is a poor one for it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leafage import bench, store
from leafage.llm import LLM

MEMORY_SCRIPT = """
import json, sys
from leafage.llm import LLM
from leafage.core.sampling_params import SamplingParams

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

llm = LLM(sys.argv[1], kv_cache_tokens=2048)
params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
llm.generate({"prompt_token_ids": list(range(100, 2000))}, params)  # touches all but a few blocks of the pool
print(json.dumps({"rss": status("VmRSS"), "peak": status("VmHWM"), "pool": llm.build.plan.kv_bytes}))
"""


class Pair:
    """Measurements of both sides, in the order taken."""

    def __init__(self, name: str, unit: str, *, more_is_better: bool) -> None:
        self.name = name
        self.unit = unit
        self.more_is_better = more_is_better
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def add(self, ours: float, theirs: float) -> None:
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratios(self) -> list[float]:
        """Above 1: Leafage is ahead."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [a / b if self.more_is_better else b / a for a, b in pairs]

    def row(self) -> str:
        return (
            f"{self.name:34} {_span(self.ours):>24} {_span(self.theirs):>24} {self.unit:6}"
            f" {_span(self.ratios, 'x'):>22}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "leafage": self.ours,
            "llamacpp": self.theirs,
            "ratios": self.ratios,
            "median_ratio": statistics.median(self.ratios),
        }


def _span(values: list[float], suffix: str = "") -> str:
    digits = 0 if statistics.median(values) >= 100 else 2
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f}{suffix} ({low:.{digits}f}-{high:.{digits}f})"


def llama_bench(folder: Path, model: Path, threads: int, *words: str) -> float:
    """Tokens per second of one llama-bench run."""
    command = [
        str(folder / "llama-bench"),
        "-m",
        str(model),
        "-t",
        str(threads),
        "-r",
        "1",
        "-o",
        "json",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[-1]["avg_ts"])


def measure_speed(args: argparse.Namespace, model: Path, pairs: list[Pair], extra: dict[str, Path]) -> None:
    """Decode and prefill of both sides, and of llama.cpp on other formats."""
    with LLM(str(model), kv_cache_tokens=4096, threads=args.threads) as llm:
        threads = llm.build.threads
        w1, w2 = bench.WORKLOADS["W1"], bench.WORKLOADS["W2"]
        decode = Pair("W1 decode, 128 + 128", "tok/s", more_is_better=True)
        prefill = Pair("W2 prefill, 1,024", "tok/s", more_is_better=True)
        pairs += [decode, prefill]
        others = {
            (name, kind): Pair(f"  beside its {name}: {kind}", "tok/s", more_is_better=True)
            for name in extra
            for kind in ("W1", "W2")
        }
        pairs += others.values()
        vocabulary = llm.build.model.vocab_size
        bench.run_once(llm, bench.w1(1, vocabulary))
        for repetition in range(args.repetitions):
            _note(f"speed, {repetition + 1} of {args.repetitions}")
            work = w1.make(1000 + repetition, vocabulary)
            ours = w1.rate(work, bench.run_once(llm, work))
            decode.add(ours, llama_bench(args.llamacpp, model, threads, "-p", "0", "-n", "128", "-d", "128"))
            work = w2.make(2000 + repetition, vocabulary)
            ours_prefill = w2.rate(work, bench.run_once(llm, work))
            prefill.add(ours_prefill, llama_bench(args.llamacpp, model, threads, "-p", "1024", "-n", "0"))
            for name, path in extra.items():
                theirs = llama_bench(args.llamacpp, path, threads, "-p", "0", "-n", "128", "-d", "128")
                others[name, "W1"].add(ours, theirs)
                theirs = llama_bench(args.llamacpp, path, threads, "-p", "1024", "-n", "0")
                others[name, "W2"].add(ours_prefill, theirs)


def cold_leafage(model: Path) -> float:
    """Seconds from starting the process to its end, with the first token printed."""
    command = [sys.executable, "-m", "leafage", "run", "Hello", "--max-tokens", "1", "--model", str(model)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True)
    seconds = time.perf_counter() - began
    assert done.stdout, "no token came"
    return seconds


def cold_llama_server(folder: Path, model: Path, threads: int) -> float:
    """Seconds from starting llama-server to its first token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(folder / "llama-server"), "-m", str(model), "-t", str(threads), "--host", "127.0.0.1"]
    command += ["--port", str(port), "-c", "4096"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: _get(f"http://127.0.0.1:{port}/health"), process)
        body = json.dumps({"prompt": "Hello", "n_predict": 1}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["tokens_predicted"] == 1
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()


def _get(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit("llama-server did not start")
        time.sleep(0.005)


def measure_memory(model: Path) -> dict[str, int]:
    """Resident bytes of a process that has filled its KV pool."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(model)], capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(done.stdout)
    size = store.files.size_of(model)
    return found | {
        "file": size,
        "beyond_file_and_pool": found["rss"] - size - found["pool"],
        "peak_beyond_file_and_pool": found["peak"] - size - found["pool"],
    }


def quantized(folder: Path, model: Path, name: str, target: Path) -> Path:
    """The model in another of llama.cpp's formats."""
    path = target / f"{name}.gguf"
    command = [str(folder / "llama-quantize"), "--allow-requantize", str(model), str(path), name]
    subprocess.run(command, check=True, capture_output=True)
    return path


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llamacpp", type=Path, default=os.environ.get("LEAFAGE_LLAMACPP"))
    parser.add_argument("--model", default=store.DEFAULT_MODEL)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--formats", nargs="*", default=[], metavar="TYPE")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.llamacpp is None or not (args.llamacpp / "llama-bench").is_file():
        parser.error("--llamacpp must be the folder with llama-bench and llama-server")
    if (load := bench.load_average()) > bench.BUSY_LOAD:
        _note(f"warning: the machine is busy (load average {load:.1f}): only an idle one tells")
    model = store.resolve(args.model)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder:
        extra = {name: quantized(args.llamacpp, model, name, Path(folder)) for name in args.formats}
        measure_speed(args, model, pairs, extra)
    cold = Pair("cold start to first token", "s", more_is_better=False)
    pairs.append(cold)
    threads = args.threads or len(os.sched_getaffinity(0))
    for repetition in range(args.repetitions):
        _note(f"cold start, {repetition + 1} of {args.repetitions}")
        cold.add(cold_leafage(model), cold_llama_server(args.llamacpp, model, threads))
    memory = measure_memory(model)
    print(f"{'':34} {'Leafage':>24} {'llama.cpp':>24} {'':6} {'ahead by':>22}")
    for pair in pairs:
        print(pair.row())
    print(
        f"memory beyond file and KV pool: {memory['beyond_file_and_pool'] / 1e6:.0f} MB "
        f"(peak {memory['peak_beyond_file_and_pool'] / 1e6:.0f} MB)"
    )
    if args.json:
        report = {"model": str(model), "pairs": [pair.as_dict() for pair in pairs], "memory": memory}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
