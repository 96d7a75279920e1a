from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leafage.resources import available_cpus, available_memory

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("3000000 100000", 8),
    ],
)
def test_c04_threads_follow_the_cgroup_v2_quota(
    tmp_path: Path, affinity: None, quota: str, expected: int
) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": quota})
    assert available_cpus(root) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3)])
def test_c04_threads_follow_the_cgroup_v1_quota(
    tmp_path: Path, affinity: None, quota: str, expected: int
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu,cpuacct:/docker/1\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": quota,
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000",
        },
    )
    assert available_cpus(root) == expected


def test_c04_the_tightest_ancestor_counts(tmp_path: Path, affinity: None) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "400000 100000",
        },
    )
    assert available_cpus(root) == 4


def test_c04_in_a_container_the_mount_is_the_own_group(tmp_path: Path, affinity: None) -> None:
    """The path names a folder that the container cannot see."""
    root = tree(tmp_path, {"proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/cpu.max": "200000 100000"})
    assert available_cpus(root) == 2


def test_c04_without_cgroups_the_affinity_counts(tmp_path: Path, affinity: None) -> None:
    assert available_cpus(tree(tmp_path, {})) == 8


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_c04_a_process_with_one_cpu_counts_one() -> None:
    """The real thing, not a made-up tree: two instances with disjoint masks never share a core."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from leafage.resources import available_cpus; print(available_cpus())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1"


def test_memory_of_the_machine(tmp_path: Path) -> None:
    assert available_memory(tree(tmp_path, {})) == 8 * GIB


def test_memory_of_a_cgroup_v2_leaves_out_page_cache(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/app\n",
            "sys/fs/cgroup/app/memory.max": str(4 * GIB),
            "sys/fs/cgroup/app/memory.current": str(3 * GIB),
            "sys/fs/cgroup/app/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
    )
    assert available_memory(root) == 2 * GIB


def test_memory_of_a_cgroup_v1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/app\n",
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/app/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/app/memory.stat": f"cache 7\ntotal_inactive_file {GIB // 2}\n",
        },
    )
    assert available_memory(root) == 3 * GIB // 2


def test_a_cgroup_without_limit_says_max(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "max",
            "sys/fs/cgroup/memory.current": str(GIB),
        },
    )
    assert available_memory(root) == 8 * GIB


def test_never_below_zero(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": str(2 * GIB),
        },
    )
    assert available_memory(root) == 0
