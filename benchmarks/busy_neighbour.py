"""W1 beside a process that keeps one core busy: what each side keeps of its speed, and what it leaves.

    python benchmarks/busy_neighbour.py [--repetitions 5] [--json FILE]

Leafage with a thread for each core and with one less, and llama.cpp (llama-bench), each alone and beside the
neighbour, in turn. The neighbour counts; its speed alone is taken first. About 20 s a repetition.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from comparison import machine, show
from comparison.sides import DRIVER
from comparison.spread import Spread
from peers import client

from leafage import bench, store
from leafage.resources import available_cpus

HEADER = ("", "alone", "beside it", "keeps", "the neighbour keeps", "idle CPUs")
VOCABULARY = 49_152


class Neighbour(AbstractContextManager["Neighbour"]):
    """A process that counts as fast as it can."""

    def __enter__(self) -> Neighbour:
        context = multiprocessing.get_context("spawn")
        self._count = context.Value("Q", 0, lock=False)
        self._process = context.Process(target=_count, args=(self._count,), daemon=True)
        self._process.start()
        while self._count.value == 0:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    @property
    def count(self) -> int:
        return int(self._count.value)


def _count(count: Any) -> None:
    while True:
        for _ in range(1000):
            pass
        count.value += 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=client.default_folder(), help="(default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--model", default="smollm2", help="a name or a file")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    model, cores = store.resolve(args.model).resolve(), available_cpus()
    sides = {}
    for threads in sorted({cores, max(1, cores - 1)}, reverse=True):
        words = ["--model", str(model), "--peers", str(args.peers), "--threads", str(threads)]
        sides[f"Leafage, {_threads(threads)}"] = client.Peer([sys.executable, str(DRIVER), *words])
    try:
        title = f"llama.cpp, {_threads(cores)}"
        sides[title] = client.Peer(client.command("llamacpp", args.peers, model, cores))
    except client.PeerError as error:
        print(error, file=sys.stderr)
    try:
        report = _measure(sides, args.repetitions)
    finally:
        for side in sides.values():
            side.close()
    print(show.aligned(rows(report)))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count > 1)


def _measure(sides: dict[str, client.Peer], repetitions: int) -> dict[str, Any]:
    with Neighbour() as neighbour:
        began, before = time.perf_counter(), neighbour.count
        time.sleep(2.0)
        full = (neighbour.count - before) / (time.perf_counter() - began)
    found: dict[str, dict[str, Any]] = {
        name: {"alone": [], "beside": [], "neighbour": [], "idle": machine.idle_cpus(side.pid, 1.0)}
        for name, side in sides.items()
    }
    for repetition in range(repetitions):
        work = bench.w1(repetition, VOCABULARY)
        for name, side in list(sides.items())[:: 1 if repetition % 2 == 0 else -1]:
            found[name]["alone"].append(_rate(side, work))
            with Neighbour() as neighbour:
                began, before = time.perf_counter(), neighbour.count
                found[name]["beside"].append(_rate(side, work))
                rate = (neighbour.count - before) / (time.perf_counter() - began)
                found[name]["neighbour"].append(rate / full)
    return {"cpu": machine.cpu_name(), "sides": found}


def _rate(side: client.Peer, work: bench.Work) -> float:
    """Tokens per second while it decodes."""
    answer = side.run("W1", work.prompts, work.output_lengths)
    return float((work.num_output_tokens - 1) / answer["decode"])


def rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table, its header first."""
    lines: list[tuple[str, ...]] = [HEADER]
    for name, found in report["sides"].items():
        keeps = [100 * b / a for a, b in zip(found["alone"], found["beside"], strict=True)]
        lines.append(
            (
                name,
                Spread.of(found["alone"]).show(" tok/s"),
                Spread.of(found["beside"]).show(" tok/s"),
                Spread.of(keeps).show(" %"),
                Spread.of([100 * share for share in found["neighbour"]]).show(" %"),
                f"{found['idle']:.2f}",
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
