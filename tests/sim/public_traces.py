"""The public traces, which are data beside the project and no part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not in {TRACES}")
