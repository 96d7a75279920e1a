"""The core leaves no reference cycles behind: steps never wait for the garbage collector to free memory."""

from __future__ import annotations

import gc

from tests.core.toy import Loop


def test_finished_requests_and_evicted_nodes_are_freed_at_once() -> None:
    loop = Loop(12, 4, check=False)
    gc.collect()
    gc.disable()
    try:
        for i in range(6):
            loop.add(range(100 * i, 100 * i + 20), max_tokens=12, n=2, temperature=1.0)
        loop.requests.clear()
        loop.run()
        loop.answers.clear()
        assert loop.kv.counters.evicted_blocks > 0 and loop.scheduler.counters.preemptions > 0
        assert gc.collect() == 0, "cyclic garbage"
    finally:
        gc.enable()
