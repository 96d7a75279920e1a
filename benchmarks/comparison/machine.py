"""The machine under the measurements: which CPU, who else uses it, and what it can do at best."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_name() -> str:
    """As /proc/cpuinfo has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "unknown CPU"


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of the whole machine since it started: used by processes, and taken by its host."""

    busy: float
    stolen: float

    @classmethod
    def now(cls, stat: str | None = None) -> Usage:
        text = Path("/proc/stat").read_text() if stat is None else stat
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
            int, text.splitlines()[0].split()[1:]
        )
        return cls((user + nice + system + irq + softirq) / TICKS, steal / TICKS)


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of a process and its living descendants; ended children count with their parents."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end while we read
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            parents[int(entry)] = int(fields[1])
            seconds[int(entry)] = sum(int(field) for field in fields[11:15]) / TICKS
    total = 0.0
    for process, own in seconds.items():
        ancestor = process
        while ancestor != root and ancestor in parents:
            ancestor = parents[ancestor]
        total += own if ancestor == root else 0.0
    return total


class Meter:
    """CPUs that others kept busy since it was made.

    Others are all but a side's processes (that of `side` and its descendants) and this process itself.
    """

    def __init__(self, side: int) -> None:
        self._side = side
        self._began = time.perf_counter()
        self._usage = Usage.now()
        self._own = self._own_seconds()

    def _own_seconds(self) -> float:
        side = tree_cpu_seconds(self._side)
        return side if self._side == os.getpid() else side + time.process_time()

    def others(self) -> tuple[float, float]:
        """(CPUs busy with other processes, CPUs that the host took), on average."""
        wall = max(time.perf_counter() - self._began, 1e-3)
        usage, own = Usage.now(), self._own_seconds() - self._own
        busy = usage.busy - self._usage.busy - own
        return max(0.0, busy / wall), (usage.stolen - self._usage.stolen) / wall


def idle_cpus(process: int, seconds: float) -> float:
    """CPUs that a process tree uses while nobody asks anything of it."""
    before = tree_cpu_seconds(process)
    time.sleep(seconds)
    return (tree_cpu_seconds(process) - before) / seconds


def memory_bytes() -> int:
    """Of the whole machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
