"""Leafage beside its peers, on the same weights and prompts: one table of ratios, floors and verdicts.

    python benchmarks/compare.py                          # all rows; about 35 minutes
    python benchmarks/compare.py --rows w1 w2 --json out.json
    python benchmarks/compare.py --rows w1 w2 --update out.json   # some rows again
    python benchmarks/compare.py --http                   # their servers, over HTTP; about 40 minutes

`peers/setup` installs the peers. Each side runs in a process of its own; repetitions are interleaved, so that
both sides of a ratio see the same machine, and the machine's floors are measured around each. Run it on an
otherwise idle machine. What each row measures and wants: docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from comparison import http_plan, http_rows, llama1b, machine, plan, show
from comparison.rows import TOKENS_DIFFER, Row, Table
from comparison.runs import Record, Runner
from comparison.sides import LEAFAGE, Files, Sides, say
from comparison.update import updated
from peers import client, expected

from leafage import bench, store
from leafage.errors import LeafageError
from leafage.kernels import _native
from leafage.resources import available_cpus

DEFAULT_REPETITIONS = 3


def main() -> int:
    args = _arguments()
    planned = http_plan if args.http else plan
    rows = set(args.rows or planned.ROWS)
    before = _earlier(args.update)
    load = bench.load_average()
    if load > bench.BUSY_LOAD:
        say(f"warning: the machine is busy (load average {load:.1f}): only an idle one tells")
    sides = Sides(_files(args, rows), args.peers, args.threads)
    runner = Runner(sides, args.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sides end with us
    try:
        planned.run(rows, sides, runner, args.repetitions)
    finally:
        sides.close()
    known = expected.figures(expected.cpu(Path("/proc/cpuinfo").read_text()))
    table = (http_rows.HTTPTable if args.http else Table)(runner.record, sides, known).rows(rows)
    report = _report(args, sides, runner.record, table, load)
    print(show.text(table))
    if args.http:
        print(http_rows.text(runner.record), end="\n\n")
    print(show.footer(report))
    if not known:
        print("no figures of the peers are known on this CPU: whether they are set up well was not checked")
    if before is not None:
        try:
            report = updated(before, report)
        except ValueError as error:
            say(f"{args.update} stays as it is: {error}")
            args.update = None
    if file := args.json or args.update:
        file.write_text(json.dumps(report, indent=1) + "\n")
        say(f"written: {file}")
    return _exit_code(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = f"{', '.join(plan.ROWS)}; with --http {', '.join(http_plan.ROWS)}"
    parser.add_argument("--rows", nargs="+", metavar="ROW", help=names)
    parser.add_argument("--http", action="store_true", help="the servers of all, spoken to by one client")
    parser.add_argument("--peers", type=Path, default=client.default_folder(), help="(default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=DEFAULT_REPETITIONS, metavar="N")
    parser.add_argument("--threads", type=int, default=available_cpus(), metavar="N")
    parser.add_argument("--model", default="smollm2", help="SmolLM2-135M Q4_1: a name or a file")
    parser.add_argument("--gemma", default="gemma3-270m", help="Gemma 3 270M Q4_K_M: a name or a file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number, for report.py")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="an earlier --json: put these rows into it"
    )
    args = parser.parse_args()
    known = http_plan.ROWS if args.http else plan.ROWS
    if unknown := set(args.rows or ()) - set(known):
        parser.error(f"no row named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if args.repetitions < 1 or args.threads < 1:
        parser.error("--repetitions and --threads must be at least 1")
    args.peers = args.peers.resolve()
    return args


def _earlier(file: Path | None) -> dict[str, Any] | None:
    """The report to update, read before anything is measured."""
    if file is None:
        return None
    try:
        report: dict[str, Any] = json.loads(file.read_text())
        report["rows"], report["record"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"--update takes a file that --json wrote; {file}: {error!r}") from error
    return report


def _files(args: argparse.Namespace, rows: set[str]) -> Files:
    gemma = None
    if rows & {"formats", "sampled", "start", "memory"}:
        gemma = _model(args.gemma)
    random = llama1b.cached_file() if "llama1b" in rows else None
    return Files(_model(args.model), gemma, random)


def _model(name: str) -> Path:
    try:
        return store.resolve(name).resolve()
    except LeafageError as error:
        raise SystemExit(f"{error} (leafage pull {name})") from error


def _report(
    args: argparse.Namespace, sides: Sides, record: Record, table: list[Row], load: float
) -> dict[str, Any]:
    versions = {side.engine: str(facts["version"]) for side, facts in sides.settings.items()}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": machine.cpu_name(),
            "cores": os.cpu_count(),
            "memory_bytes": machine.memory_bytes(),
            "threads": args.threads,
            "kernels": _native.variant(),
            "python": platform.python_version(),
        },
        "load": {"before": load, "after": bench.load_average()},
        "repetitions": args.repetitions,
        "versions": dict(sorted(versions.items(), key=lambda item: (item[0] != LEAFAGE, item[0]))),
        "sides": [
            {"side": str(side), "idle_cpus": sides.idle_cpus.get(side), **_without_folders(facts)}
            for side, facts in sides.settings.items()
        ],
        "rows": [row.as_dict() for row in table],
        "record": record.as_dict(),
    }


def _without_folders(value: Any) -> Any:
    """Paths as names: where files lie on the machine that measured is nobody's business."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return value


def _exit_code(table: list[Row]) -> int:
    """1 where our tokens differ or our side failed; a ratio that was missed is no failure of the run."""
    wrong = [row for row in table if row.problem == TOKENS_DIFFER or "FAILED: Leafage" in row.problem]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
