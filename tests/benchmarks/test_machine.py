from __future__ import annotations

import os
import subprocess
import sys
import time

from comparison import machine

SPIN = "import sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_usage_counts_all_but_idle_and_leaves_out_what_the_host_took() -> None:
    stat = "cpu  100 20 30 9999 888 4 6 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    usage = machine.Usage.now(stat)
    assert usage.busy == (100 + 20 + 30 + 4 + 6) / machine.TICKS
    assert usage.stolen == 50 / machine.TICKS


def test_tree_counts_a_process_and_its_children_but_not_its_parent() -> None:
    child = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {SPIN!r}])\n"
        "print(1, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = machine.tree_cpu_seconds(process.pid)
        assert machine.tree_cpu_seconds(os.getpid()) >= seconds, "a parent has its children in it"
        process.communicate()
    assert 0.28 <= seconds < 3


def test_meter_takes_a_side_for_its_own() -> None:
    """Two spinning processes: one is the side, the other is somebody else."""
    forever = "while True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", forever]) for _ in range(2)]
    try:
        time.sleep(0.2)
        meter = machine.Meter(processes[0].pid)
        time.sleep(0.5)
        busy, stolen = meter.others()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert busy > 0.1, "the other process is missing"
    assert stolen >= 0


def test_idle_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.3)
        assert machine.idle_cpus(process.pid, 0.2) <= 0.1
        process.communicate(b"\n")
