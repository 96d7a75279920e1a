"""Load on the real model: many client threads, random prompts, early leavers, a pool that is too small.

Part of scripts/soak. Every answer must be the one the request gets alone, and nothing may be left behind.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from leafage import LLM, SamplingParams
from leafage.errors import LeafageError

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("SOAK_LOAD_SECONDS", "120"))
NUM_CLIENTS = 12


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    """Prompts that share prefixes, of 1 to 400 tokens; greedy or sampled with a seed."""
    shared = random.Random(rng.randrange(4)).choices(range(100, 40000), k=200)
    prompt = shared[: rng.randrange(1, 200)] + rng.choices(range(100, 40000), k=rng.randrange(0, 200))
    params = SamplingParams(
        max_tokens=rng.randrange(1, 48),
        temperature=rng.choice([0.0, 0.9]),
        seed=rng.randrange(1000),
        presence_penalty=rng.choice([0.0, 0.5]),
        logprobs=rng.choice([None, 2]),
        ignore_eos=True,
    )
    return prompt, params


@pytest.mark.timeout(SECONDS * 4 + 600)
def test_many_clients_in_a_small_pool(smollm2_path: Path) -> None:
    settings = {"max_num_batched_tokens": 128, "max_num_seqs": 16, "seed": 0}
    answers: list[tuple[list[int], SamplingParams, list[int]]] = []
    problems: list[str] = []
    counts = {"answers": 0, "left early": 0, "refused": 0}
    end = time.monotonic() + SECONDS

    with LLM(str(smollm2_path), kv_cache_tokens=1536, **settings) as llm:

        def client(number: int) -> None:
            rng = random.Random(number)
            while time.monotonic() < end:
                prompt, params = random_request(rng)
                try:
                    if rng.random() < 0.2:
                        stream = llm.stream(prompt, params)
                        for _ in range(rng.randrange(3)):
                            next(stream, None)
                        stream.close()
                        counts["left early"] += 1
                    elif rng.random() < 0.05:
                        with pytest.raises(LeafageError):
                            llm.generate([10**9], params)
                        counts["refused"] += 1
                    else:
                        output = llm.generate([prompt], params)[0]
                        answers.append((prompt, params, output.outputs[0].token_ids))
                        counts["answers"] += 1
                except BaseException as error:  # a thread cannot fail a test by raising
                    problems.append(f"client {number}: {error!r}")
                    return

        clients = [threading.Thread(target=client, args=(i,)) for i in range(NUM_CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        stats = llm.stats()
        kv = llm.build.engine.scheduler.kv
        llm.build.engine.scheduler.check()
        assert kv.num_active == 0 and kv.num_free + kv.num_cached == kv.num_blocks, "blocks were lost"
        assert not llm.build.engine.has_unfinished
    assert not problems, problems[:3]
    assert counts["answers"] > NUM_CLIENTS and stats["num_preemptions"] > 0, (counts, stats)

    with LLM(str(smollm2_path), kv_cache_tokens=4096, prefix_index="none", **settings) as alone:
        for prompt, params, token_ids in random.Random(0).sample(answers, min(200, len(answers))):
            assert alone.generate([prompt], params)[0].outputs[0].token_ids == token_ids
    print(f"\n{counts}, {stats['num_preemptions']} preemptions")
