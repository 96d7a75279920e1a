"""Many streaming clients at once, for minutes, on the real model: no error, no leak, all get on."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.soak.rig import Stream, rss, serving, settle, stream

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("SOAK_SERVER_SECONDS", "600"))
NUM_CLIENTS = 256
NUM_CHECKED = 60
"""Requests whose answers are asked for again, alone."""
MAX_GROWTH = 24 << 20
"""Bytes of memory after the first fifth of the time, by when all of the KV pool has been touched."""


def random_body(rng: random.Random) -> dict[str, Any]:
    """Prompts that share prefixes; greedy or drawn with a seed."""
    shared = random.Random(rng.randrange(8)).choices(range(100, 40000), k=120)
    prompt = shared[: rng.randrange(1, 120)] + rng.choices(range(100, 40000), k=rng.randrange(1, 40))
    return {
        "prompt": prompt,
        "max_tokens": rng.randrange(4, 40),
        "temperature": rng.choice([0, 0.9]),
        "seed": rng.randrange(1000),
        "ignore_eos": True,
    }


@pytest.mark.timeout(SECONDS * 2 + 900)
def test_256_streaming_clients(smollm2_path: Path) -> None:
    answers: list[tuple[dict[str, Any], Stream]] = []
    counts = [0] * NUM_CLIENTS
    problems: list[str] = []
    memory: list[int] = []

    async def client(number: int, port: int, end: float) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            body = random_body(rng)
            seen = await stream(port, body)
            if seen.status != 200 or seen.error or not seen.ended or seen.finish_reason != "length":
                problems.append(f"client {number}: {seen}")
                return
            if len(seen.token_ids) != body["max_tokens"]:
                problems.append(f"client {number}: {len(seen.token_ids)} tokens of {body['max_tokens']}")
                return
            counts[number] += 1
            answers.append((body, seen))

    with serving(str(smollm2_path), "--kv-cache-tokens", "12000") as server:

        async def watch(end: float) -> None:
            while time.monotonic() < end:
                memory.append(rss(server))
                await asyncio.sleep(SECONDS / 100)

        async def main() -> None:
            end = time.monotonic() + SECONDS
            await asyncio.gather(watch(end), *(client(i, server.port, end) for i in range(NUM_CLIENTS)))

        asyncio.run(main())
        assert not problems, problems[:3]
        settle(server, 30)
        files = server.num_files
        for body, seen in random.Random(0).sample(answers, min(NUM_CHECKED, len(answers))):
            alone = asyncio.run(stream(server.port, body))
            assert alone.token_ids == seen.token_ids, f"not the tokens it gets alone: {body}"
        assert server.num_files <= files + 2, "connections stayed open"

    steady = memory[len(memory) // 5 :]
    growth = max(steady[-5:]) - max(steady[:5])
    firsts = sorted(seen.first for _, seen in answers)
    longest = max(max(seen.gaps) for _, seen in answers)
    tokens = sum(len(seen.token_ids) for _, seen in answers)
    print(
        f"== {len(answers)} answers, {tokens} tokens, {tokens / SECONDS:.0f} tok/s; first token P50 "
        f"{statistics.median(firsts):.2f} s, P99 {firsts[int(len(firsts) * 0.99)]:.2f} s; longest gap "
        f"{longest:.2f} s; answers of a client {min(counts)} to {max(counts)}; "
        f"memory {growth / 2**20:+.1f} MiB"
    )
    assert growth < MAX_GROWTH, f"memory grew by {growth / 2**20:.1f} MiB: {memory}"
    assert min(counts) * 2 >= statistics.median(counts), f"unfair: {sorted(counts)}"
