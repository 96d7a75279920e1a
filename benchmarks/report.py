"""Writes docs/performance.md and its plots from what the benchmarks measured.

    python benchmarks/report.py [--folder docs/performance] [--page docs/performance.md]

Reads a JSON file of each benchmark (SOURCES) in the folder and puts the plots beside them. Needs matplotlib
(`pip install '.[bench]'`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from comparison import http_page, page, plots

SOURCES = {
    "compare": "compare.py",
    "http": "compare.py --http",
    "http_overhead": "http_overhead.py",
    "busy_neighbour": "busy_neighbour.py",
    "growth": "growth.py",
    "fragmentation": "fragmentation.py",
    "quality": "quality.py",
}
"""What wrote FOLDER/NAME.json, with --json."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    docs = Path(__file__).resolve().parent.parent / "docs"
    parser.add_argument("--folder", type=Path, default=docs / "performance")
    parser.add_argument("--page", type=Path, default=docs / "performance.md")
    args = parser.parse_args()
    found = {name: _read(args.folder, name) for name in SOURCES}
    growth, fragmentation = found["growth"], found["fragmentation"]
    plots.decode(growth, args.folder / "decode.svg")
    plots.scheduler(growth, args.folder / "scheduler.svg")
    plots.memory(fragmentation, args.folder / "memory.svg")
    http = http_page.section(found["http"], found["http_overhead"], found["busy_neighbour"])
    args.page.write_text(page.markdown(found["compare"], growth, fragmentation, found["quality"], http))


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        script, *options = SOURCES[name].split()
        words = " ".join([f"benchmarks/{script}", *options])
        raise SystemExit(f"{path} is missing: {words} --json writes it") from None
    return found


if __name__ == "__main__":
    main()
