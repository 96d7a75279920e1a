"""What paging gains on this machine: W3 under a small KV budget, paged and as older systems reserve memory.

    python benchmarks/paging_gain.py [--json FILE] [--repetitions 3]

The same engine, scheduler and kernels run all systems; only where sequences put their K and V differs, and,
for `static`, when requests are admitted. All give the same tokens, which is checked. Systems take turns; the
table has medians and ranges. With `--json` the runs are added to those that FILE has, so that a long
comparison can be made in pieces.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison import machine
from comparison.spread import Spread

from leafage import LLM, bench, store
from leafage.build import Assets, assemble, load_assets
from leafage.config import EngineConfig
from leafage.core.usage import KINDS
from leafage.resources import available_cpus

SYSTEMS: dict[str, dict[str, Any]] = {
    "paged": {},
    "oracle": {"kv": "reserved-oracle"},
    "pow2": {"kv": "reserved-pow2"},
    "pow2, buddy": {"kv": "reserved-pow2-buddy"},
    "max": {"kv": "reserved-max"},
    "static, max": {"kv": "reserved-max", "policy": "static"},
}
KV_TOKENS = 2048
MAX_MODEL_LEN = 1024


@dataclass(slots=True)
class Measured:
    """One run of a system. Shares are of the KV cache, by kind (`leafage.core.usage`), means over time."""

    system: str
    seconds: float
    tokens_per_second: float
    mean_batch: float
    preemptions: int
    shares: dict[str, float]
    digest: str
    """Of all output tokens."""


def run(assets: Assets, system: str, workload: str, seed: int, settings: dict[str, Any]) -> Measured:
    """Run a workload once on a new engine."""
    config = EngineConfig(**settings, **SYSTEMS[system])
    with LLM.from_build(assemble(config, assets)) as llm:
        vocab_size = llm.build.model.vocab_size
        bench.run_once(llm, bench.Work([[5] * 64], [8]))  # warms up
        before = llm.stats()["num_preemptions"]
        work = bench.WORKLOADS[workload].make(seed, vocab_size)
        done = bench.run_once(llm, work)
        slots = llm.build.plan.kv_tokens
        return Measured(
            system=system,
            seconds=done.wall,
            tokens_per_second=work.num_output_tokens / done.wall,
            mean_batch=done.mean_batch,
            preemptions=int(llm.stats()["num_preemptions"] - before),
            shares={kind: done.kv[kind] / slots for kind in KINDS},
            digest=hashlib.blake2b(repr(done.tokens).encode(), digest_size=8).hexdigest(),
        )


def check_tokens(runs: list[dict[str, Any]]) -> None:
    """Every system gave the same tokens in the same repetition."""
    by_seed: dict[int, set[str]] = {}
    for entry in runs:
        by_seed.setdefault(entry["seed"], set()).add(entry["digest"])
    if any(len(digests) > 1 for digests in by_seed.values()):
        raise SystemExit("the systems gave different tokens: this is a bug, and the times say nothing")


COLUMNS = (
    "tok/s", "of paged", "batch", "stored", "to be written", "internal", "external", "unused", "preempted",
)  # fmt: skip


def report(runs: list[dict[str, Any]]) -> str:
    """The table: medians and ranges by system."""
    lines = ["".join((f"{'':13}", *(f"{name:>20}" for name in COLUMNS)))]
    paged = {entry["seed"]: entry["tokens_per_second"] for entry in runs if entry["system"] == "paged"}
    for system in SYSTEMS:
        mine = [entry for entry in runs if entry["system"] == system]
        if not mine:
            continue
        ratios = [e["tokens_per_second"] / paged[e["seed"]] for e in mine if e["seed"] in paged]
        share = {kind: [100 * entry["shares"][kind] for entry in mine] for kind in KINDS}
        share["unused"] = [sum(pair) for pair in zip(share["free"], share["cached"], strict=True)]
        shown = ("stored", "reservation", "internal", "external", "unused")
        cells = [
            Spread.of([entry["tokens_per_second"] for entry in mine]).show(),
            Spread.of(ratios).show("x") if ratios else "-",
            Spread.of([entry["mean_batch"] for entry in mine]).show(),
            *(Spread.of(share[kind]).show(" %") for kind in shown),
            Spread.of([entry["preemptions"] for entry in mine]).show(),
        ]
        lines.append("".join((f"{system:13}", *(f"{cell:>20}" for cell in cells))))
    return "\n".join(lines)


def say(measured: Measured) -> None:
    print(
        f"{measured.system}: {measured.tokens_per_second:.0f} tok/s, batch {measured.mean_batch:.1f}, "
        f"{measured.preemptions} preemptions",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workload", default="W3", choices=list(bench.WORKLOADS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--kv-tokens", type=int, default=KV_TOKENS)
    parser.add_argument("--max-model-len", type=int, default=MAX_MODEL_LEN)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = {
        "kv_cache_tokens": args.kv_tokens,
        "max_model_len": args.max_model_len,
        "threads": args.threads,
    }
    header = {"workload": args.workload, **settings}
    runs: list[dict[str, Any]] = []
    if args.json is not None and args.json.exists():
        known = json.loads(args.json.read_text())
        if known["settings"] != header:
            raise SystemExit(f"{args.json} has runs of {known['settings']}, not of {header}")
        runs = known["runs"]
    assets = load_assets(EngineConfig(model=str(store.resolve(args.model)), threads=args.threads))
    for _ in range(args.repetitions):
        for system in args.systems:
            seed = 100_000 * (1 + sum(done["system"] == system for done in runs))  # the same for all systems
            measured = run(assets, system, args.workload, seed, settings)
            runs.append({"seed": seed, **asdict(measured)})
            say(measured)
    check_tokens(runs)
    print(report(runs))
    if args.json is not None:
        found = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine.cpu_name(),
            "settings": header,
            "runs": runs,
        }
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
