"""What this process may use: CPUs (affinity, cgroup quota) and memory (machine, cgroup limit)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
"""Where /proc and /sys are; tests put a made-up tree here."""


def available_cpus(root: Path = ROOT) -> int:
    """CPUs this process may use, at least 1.

    The smallest of the affinity mask (cpusets included) and the CPU quotas of the process's cgroups, v1 or
    v2. A quota of 1.5 CPUs counts as 1: a thread that is throttled makes all others wait at the next barrier.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # macOS has neither affinity nor cgroups
        count = os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        quota = _cpu_quota(folder)
        if quota is not None:
            count = min(count, math.floor(quota))
    return max(1, count)


def available_memory(root: Path = ROOT) -> int:
    """Bytes this process can still allocate: what the machine has left, or the cgroup if that is less."""
    left = _machine_memory(root)
    for folder in _cgroup_folders(root, "memory"):
        in_group = _cgroup_memory(folder)
        if in_group is not None:
            left = min(left, in_group)
    return max(0, left)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and its ancestors that govern `controller`."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller]
        else:
            continue
        relative = Path(path.lstrip("/"))
        for mount in mounts:
            # In a container the mount often shows only the process's own group, as its root.
            for folder in (relative, *relative.parents):
                if (mount / folder).is_dir():
                    yield mount / folder


def _cpu_quota(folder: Path) -> float | None:
    text = _read(folder / "cpu.max")  # v2: "quota period" in microseconds, or "max period"
    if text is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    v1_quota, v1_period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
    return None if v1_quota is None or not v1_period or v1_quota <= 0 else v1_quota / v1_period


def _cgroup_memory(folder: Path) -> int | None:
    """Limit minus use; page cache that the kernel can drop at once is not use."""
    for limit_name, used_name, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _read_int(folder / limit_name), _read_int(folder / used_name)
        if limit is None or used is None:
            continue
        stat = _read(folder / "memory.stat") or ""
        droppable = next(
            (int(row.split()[1]) for row in stat.splitlines() if row.startswith(inactive + " ")), 0
        )
        return limit - max(0, used - droppable)
    return None


def _machine_memory(root: Path) -> int:
    text = _read(root / "proc/meminfo") or ""
    for row in text.splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    """None when the file is missing or says "max"."""
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
