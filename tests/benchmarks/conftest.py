"""The benchmarks are scripts: their folder is on the path when they run, and here."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
