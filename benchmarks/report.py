"""Writes docs/performance.md and its plots from what compare, growth, fragmentation and quality.py measured.

    python benchmarks/report.py [--folder docs/performance] [--page docs/performance.md]

Reads compare.json, growth.json, fragmentation.json and quality.json in the folder and puts the plots beside
them. Needs matplotlib (`pip install '.[bench]'`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from comparison import page, plots


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    docs = Path(__file__).resolve().parent.parent / "docs"
    parser.add_argument("--folder", type=Path, default=docs / "performance")
    parser.add_argument("--page", type=Path, default=docs / "performance.md")
    args = parser.parse_args()
    compare, growth, fragmentation, quality = (
        _read(args.folder / f"{name}.json") for name in ("compare", "growth", "fragmentation", "quality")
    )
    plots.decode(growth, args.folder / "decode.svg")
    plots.scheduler(growth, args.folder / "scheduler.svg")
    plots.memory(fragmentation, args.folder / "memory.svg")
    args.page.write_text(page.markdown(compare, growth, fragmentation, quality))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise SystemExit(f"{path} is missing: benchmarks/{path.stem}.py --json writes it") from None
    return found


if __name__ == "__main__":
    main()
