"""What each peer should reach on this CPU: guards a comparison against a peer that is set up badly.

`expected.json` holds medians that each peer reached at its best settings on an idle machine, for a CPU known
by vendor, family, model and number of cores.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SHARE = 0.85  # of the expected speed; below it a peer's row does not count
RATES = ("W1", "W2")  # workloads whose figure is tokens a second; of the others it is wall seconds


def cpu(cpuinfo: str) -> dict[str, Any]:
    """The keys by which a CPU is known, from the text of /proc/cpuinfo and the cores this process may use."""
    found = dict(
        (part.strip() for part in line.split(":", 1)) for line in cpuinfo.splitlines()[:32] if ":" in line
    )
    return {
        "vendor_id": found.get("vendor_id"),
        "family": int(found.get("cpu family", -1)),
        "model": int(found.get("model", -1)),
        "cores": len(os.sched_getaffinity(0)),
    }


def figures(machine: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of a CPU: peer, format, workload; empty for a CPU that nobody measured."""
    for entry in json.loads(Path(__file__).with_name("expected.json").read_text()):
        if entry["cpu"] == machine:
            peers: dict[str, dict[str, dict[str, float]]] = entry["peers"]
            return peers
    return {}


def share(workload: str, value: float, expected: float) -> float:
    """Speed relative to the expected one."""
    return value / expected if workload in RATES else expected / value
