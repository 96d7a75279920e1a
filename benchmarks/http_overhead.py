"""What the server costs: W3 sent as 64 HTTP requests at once, beside the same requests in the engine alone.

    python benchmarks/http_overhead.py [--repetitions 5] [--json docs/performance/http_overhead.json]

Three ways in turn, in one server process: `LLM.generate`, HTTP with one answer each at its end, HTTP with an
event for each token. The client is this process; like the server's, its CPU seconds are taken from the cores
that compute, and stand apart: "without client" takes them off, shared by the cores. Then the first token of a
lone streamed request, beside that of `LLM.stream`. About 45 s a repetition.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from comparison import machine, show
from comparison.http_client import Exchange, exchange
from comparison.http_dialects import OPENAI, Ask
from comparison.spread import Spread
from peers import client

from leafage import bench, store
from leafage.resources import available_cpus

DRIVER = Path(__file__).with_name("overhead_driver.py")
VOCABULARY = 49_152
WAYS = {"engine": None, "whole": 3.0, "stream": 10.0}
"""Most per cent over the engine alone that each may take."""
FIRST_TOKEN_MS = 2.0
HEADER = ("", "wall", "CPU s: server", "client", "over the engine", "without client", "wanted", "verdict")
LONE_PROMPT, LONE_OUTPUT, LONE_PAIRS = 16, 4, 50


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--threads", type=int, default=available_cpus(), metavar="N")
    parser.add_argument("--model", default="smollm2", help="a name or a file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number, for report.py")
    args = parser.parse_args()
    model = store.resolve(args.model).resolve()
    command = [
        sys.executable,
        str(DRIVER),
        "--model",
        str(model),
        "--peers",
        ".",
        "--threads",
        str(args.threads),
    ]
    with tempfile.TemporaryFile() as log, client.Peer(command, log=log) as peer:
        measured = _measure(peer, args.repetitions)
    report = {"machine": {"cpu": machine.cpu_name(), "threads": args.threads}, **measured}
    print(show.aligned(rows(report)))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _measure(peer: client.Peer, repetitions: int) -> dict[str, Any]:
    port = peer.info["settings"]["port"]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for repetition in range(repetitions):
        work = bench.w3(100_000 * (repetition + 1), VOCABULARY)
        tokens: list[list[list[int]]] = []
        for way in WAYS if repetition % 2 == 0 else reversed(WAYS):
            run, found = _engine(peer, work) if way == "engine" else _http(peer, port, work, way == "stream")
            runs[way].append(run)
            tokens.append(found)
        if any(found != tokens[0] for found in tokens):
            raise SystemExit(f"repetition {repetition + 1}: the ways gave different tokens")
    return {"settings": peer.info["settings"] | {"model": "smollm2"}, "runs": runs, "lone": _lone(peer, port)}


def _engine(peer: client.Peer, work: bench.Work) -> tuple[dict[str, float], list[list[int]]]:
    cpu = machine.tree_cpu_seconds(peer.pid)
    answer = peer.run("engine", work.prompts, work.output_lengths)
    cpu = machine.tree_cpu_seconds(peer.pid) - cpu
    return {"wall": answer["wall"], "cpu": cpu, "client_cpu": 0.0}, answer["tokens"]


def _http(
    peer: client.Peer, port: int, work: bench.Work, stream: bool
) -> tuple[dict[str, float], list[list[int]]]:
    peer.run("empty", [[1]], [1])
    asks = [
        Ask(prompt, length, wants_ids=True, stream=stream)
        for prompt, length in zip(work.prompts, work.output_lengths, strict=True)
    ]
    exchanges = [Exchange(i, OPENAI.request(ask)) for i, ask in enumerate(asks)]
    cpu, used = machine.tree_cpu_seconds(peer.pid), time.process_time()
    exchange(port, exchanges)
    used = time.process_time() - used
    cpu = machine.tree_cpu_seconds(peer.pid) - cpu
    wall = max(one.arrivals[-1] for one in exchanges) - min(one.sent for one in exchanges)
    replies = [OPENAI.read(one, ask) for one, ask in zip(exchanges, asks, strict=True)]
    return {"wall": wall, "cpu": cpu, "client_cpu": used}, [reply.ids[0] for reply in replies]


def _lone(peer: client.Peer, port: int) -> dict[str, list[float]]:
    """Seconds to the first token of lone requests, in turn."""
    found: dict[str, list[float]] = {"engine": [], "stream": []}
    for pair in range(LONE_PAIRS):
        work = bench.Work([bench.w2(pair, VOCABULARY).prompts[0][:LONE_PROMPT]], [LONE_OUTPUT])
        for way in found if pair % 2 == 0 else reversed(found):
            peer.run("empty", [[1]], [1])
            if way == "engine":
                found[way].append(peer.run("first token", work.prompts, work.output_lengths)["wall"])
                continue
            one = Exchange(0, OPENAI.request(Ask(work.prompts[0], LONE_OUTPUT)))
            exchange(port, [one])
            found[way].append(next(one.events())[0] - one.sent)
    return found


def overheads(report: dict[str, Any], way: str, *, with_client: bool) -> list[float]:
    """Per cent over the engine alone, by repetition; without the client its CPU time, shared by the cores, is
    taken off."""
    runs, cores = report["runs"], report["machine"]["threads"]
    found = []
    for alone, run in zip(runs["engine"], runs[way], strict=True):
        wall = run["wall"] - (0.0 if with_client else run["client_cpu"] / cores)
        found.append(100 * (wall / alone["wall"] - 1))
    return found


def first_token(report: dict[str, Any]) -> float:
    """Milliseconds that a lone request's first token comes later through the server: of medians."""
    lone = report["lone"]
    return 1e3 * (statistics.median(lone["stream"]) - statistics.median(lone["engine"]))


def rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table, its header first."""
    lines = [
        ("", "wall", "CPU s: server", "client", "over the engine", "without client", "wanted", "verdict")
    ]
    for way, limit in WAYS.items():
        runs = report["runs"][way]

        def show(name: str, runs: list[dict[str, float]] = runs) -> str:
            return Spread.of([run[name] for run in runs]).show()

        line = [way, f"{show('wall')} s", show("cpu"), show("client_cpu")]
        if limit is not None:
            both = [overheads(report, way, with_client=with_client) for with_client in (True, False)]
            line += [Spread.of(values).show(" %") for values in both]
            line += [f"<= {limit:g} %", _verdict(statistics.median(both[0]) <= limit)]
        lines.append((*line, *[""] * (len(HEADER) - len(line))))
    later = first_token(report)
    times = [f"{1e3 * statistics.median(report['lone'][way]):.2f} ms" for way in ("engine", "stream")]
    title = f"lone request, first token: {times[0]} in the engine"
    verdict = _verdict(later <= FIRST_TOKEN_MS)
    lines.append((title, times[1], "", "", f"{later:.2f} ms", "", f"<= {FIRST_TOKEN_MS:g} ms", verdict))
    return lines


def _verdict(met: bool) -> str:
    return "ok" if met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
