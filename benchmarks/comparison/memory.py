"""What Leafage keeps in memory beyond the file and the KV pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leafage import bench
from leafage.llm import LLM


def measure(llm: LLM, work: bench.Work) -> dict[str, Any]:
    """Peak resident bytes during the work, which first runs once to have every block of the pool written.

    The peak is that of the second run alone where the kernel lets us reset it, else of the whole process.
    `pool` leaves out blocks that were never used: they are not resident.
    """
    fresh = bench.Work([prompt[::-1] for prompt in work.prompts], work.output_lengths)
    bench.run_once(llm, work)
    untouched = int(llm.stats()["kv_blocks_free"])
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is resident now
        of_run = True
    except OSError:
        of_run = False
    bench.run_once(llm, fresh, reset_cache=False)
    untouched = min(untouched, int(llm.stats()["kv_blocks_free"]))
    plan = llm.build.plan
    pool = plan.kv_bytes * (plan.num_blocks - untouched) // plan.num_blocks
    file = llm.build.model.path.stat().st_size
    peak = _status("VmHWM")
    return {"peak": peak, "pool": pool, "file": file, "beyond": peak - pool - file, "of_run": of_run}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")
