"""Promise 1 on the real model: the same tokens and the same bits of logits, whatever runs beside a request.

Every test compares with the same requests run alone: one at a time, cold cache, default settings.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from leafage import LLM, SamplingParams
from leafage.build import Assets
from tests.promises import Witness, engine, mixed_params, random_prompts, salted, tokens_of

pytestmark = pytest.mark.real_model

COUNT = 32
MAX_TOKENS = 8
PROMPTS = [*random_prompts(COUNT - 4, 2, 90, seed=1), *random_prompts(3, 140, 200, seed=2), [504]]
PARAMS = mixed_params(COUNT, MAX_TOKENS)
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


@pytest.fixture(scope="module")
def llm(assets: Assets, witness: Witness) -> Iterator[LLM]:
    """The engine that users get by default."""
    with engine(assets) as llm:
        witness.watch(llm)
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM, witness: Witness) -> list[list[int]]:
    """Tokens of every request, run alone with a cold cache."""
    outputs = [
        llm.generate(salted([prompt], f"alone {i}"), params)[0]
        for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
    ]
    assert all(output.num_cached_tokens == 0 for output in outputs)
    assert len(witness.digests) >= COUNT * MAX_TOKENS - COUNT
    witness.check(at_least=0)
    return tokens_of(outputs)


@pytest.mark.parametrize("batch", [2, 7, 32])
def test_d02_batch_size_changes_nothing(llm: LLM, witness: Witness, alone: Any, batch: int) -> None:
    for first in range(0, COUNT, batch):
        group = slice(first, first + batch)
        outputs = llm.generate(salted(PROMPTS[group], f"batch {batch}"), PARAMS[group])
        assert tokens_of(outputs) == alone[group]
    witness.check(at_least=COUNT * MAX_TOKENS)


def test_position_in_the_batch_changes_nothing(llm: LLM, witness: Witness, alone: Any) -> None:
    for order in (range(COUNT - 1, -1, -1), [*range(1, COUNT, 2), *range(0, COUNT, 2)]):
        outputs = llm.generate(
            salted([PROMPTS[i] for i in order], f"order {order[0]}"), [PARAMS[i] for i in order]
        )
        assert tokens_of(outputs) == [alone[i] for i in order]
    witness.check(at_least=2 * COUNT * MAX_TOKENS)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"max_num_batched_tokens": 37, "max_num_seqs": 16},
        {"max_num_batched_tokens": 128, "max_num_seqs": 3},
        pytest.param({"max_num_batched_tokens": 4096}, marks=pytest.mark.soak),
        {"threads": 1},
        pytest.param({"threads": 2}, marks=pytest.mark.soak),
        {"threads": 3},
        {"block_size": 1},
        pytest.param({"block_size": 8}, marks=pytest.mark.soak),
        {"block_size": 32},
        pytest.param({"block_size": 64}, marks=pytest.mark.soak),
        {"prefix_index": "none"},
        {"prefix_index": "hash_chain"},
        {"prefix_index": "radix-node", "kv_cache_tokens": 512},
        {"policy": "longest_prefix", "max_num_seqs": 3},
        pytest.param({"policy": "fair", "max_num_seqs": 3}, marks=pytest.mark.soak),
        {"kv": "reserved-max", "max_model_len": 300},
        pytest.param({"kv": "reserved-pow2-buddy"}, marks=pytest.mark.soak),
        pytest.param({"kv": "reserved-oracle"}, marks=pytest.mark.soak),
        {"kv": "reserved-oracle-scattered"},
    ],
    ids=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()),
)
def test_settings_change_nothing(
    assets: Assets, witness: Witness, alone: Any, settings: dict[str, Any]
) -> None:
    """Any chunking (token budgets), threads, block size, with and without a cache, paged or reserved."""
    with engine(assets, **settings) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(salted(PROMPTS, "s"), PARAMS)) == alone
    witness.check(at_least=COUNT * MAX_TOKENS)


def test_d03_a_cached_prefix_changes_nothing(llm: LLM, witness: Witness, alone: Any) -> None:
    """Cold, then with the whole prompt cached, then with prompts that share a part of a block."""
    llm.generate(salted(PROMPTS, "warm"), PARAMS)
    outputs = llm.generate(salted(PROMPTS, "warm"), PARAMS)
    assert tokens_of(outputs) == alone
    assert all(out.num_cached_tokens == len(out.prompt_token_ids) - 1 for out in outputs)
    # Prompts cut short and made different leave heads of every length in the cache.
    llm.generate(salted([[*p[: len(p) * 2 // 3], 7, 7, 7] for p in PROMPTS], "part"), PARAMS)
    outputs = llm.generate(salted(PROMPTS, "part"), PARAMS)
    assert tokens_of(outputs) == alone
    assert sum(out.num_cached_tokens for out in outputs) > sum(map(len, PROMPTS)) // 2
    witness.check(at_least=3 * COUNT * MAX_TOKENS)


def test_m05_preempted_requests_change_nothing(assets: Assets, witness: Witness, alone: Any) -> None:
    """A pool for a fraction of the requests: they are preempted, some repeatedly, and recomputed."""
    with engine(assets, kv_cache_tokens=512) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(salted(PROMPTS, "tiny"), PARAMS)) == alone
        assert llm.stats()["num_preemptions"] > 0
    witness.check(at_least=COUNT * MAX_TOKENS)


def test_p15_eviction_pressure_changes_nothing(assets: Assets, witness: Witness) -> None:
    """Random families of prompts through a cache that must evict all the time, against no cache at all."""
    rng = np.random.default_rng(15)
    families = random_prompts(4, 100, 101, seed=15)
    prompts = [
        families[rng.integers(4)][: rng.integers(1, 100)]
        + rng.integers(100, 40_000, rng.integers(1, 9)).tolist()
        for _ in range(48)
    ]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with engine(assets, prefix_index="none") as llm:
        witness.watch(llm)
        without = tokens_of(llm.generate(prompts, params))
    with engine(assets, kv_cache_tokens=256, max_num_seqs=4) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(prompts, params)) == without
        stats = llm.stats()
        assert stats["kv_blocks_evicted"] > 20 and stats["prefix_cache_hits"] > 500
    witness.check(at_least=48 * 3)


def test_m05_output_is_complete_with_30_percent_of_the_memory(assets: Assets, witness: Witness) -> None:
    prompts = random_prompts(8, 30, 60, seed=5)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    need = sum(len(prompt) + 50 for prompt in prompts)
    with engine(assets) as llm:
        witness.watch(llm)
        roomy = tokens_of(llm.generate(prompts, params))
    with engine(assets, kv_cache_tokens=need * 3 // 10) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(prompts, params)) == roomy
        assert llm.stats()["num_preemptions"] > 0
    witness.check(at_least=8 * 50)


def test_m11_four_long_outputs_in_a_pool_of_1024_tokens_all_finish(assets: Assets) -> None:
    params = SamplingParams(temperature=0, max_tokens=280, ignore_eos=True)
    with engine(assets, kv_cache_tokens=1024) as llm:
        outputs = llm.generate(random_prompts(4, 20, 40, seed=6), params)
        assert [len(out.outputs[0].token_ids) for out in outputs] == [280] * 4
        assert {out.outputs[0].finish_reason for out in outputs} == {"length"}
        assert llm.stats()["num_preemptions"] > 0


def test_streaming_changes_nothing(llm: LLM, witness: Witness, alone: Any) -> None:
    whole = llm.generate(salted(PROMPTS[:6], "whole"), PARAMS[:6])
    for i in range(6):
        pieces = list(llm.stream(salted(PROMPTS[i : i + 1], f"stream {i}")[0], PARAMS[i]))
        assert [t for piece in pieces for t in piece.outputs[0].token_ids] == alone[i]
        assert "".join(piece.outputs[0].text for piece in pieces) == whole[i].outputs[0].text
    witness.check(at_least=2 * 6 * MAX_TOKENS)


def test_requests_that_come_and_go_change_nothing(llm: LLM, witness: Witness, alone: Any) -> None:
    """Staggered arrivals from several threads, streams that are left early, in the middle of it all."""

    def neighbour() -> None:
        for i in range(6):
            stream = llm.stream(salted([PROMPTS[i][::-1]], f"n{i}")[0], GREEDY)
            for _ in range(i):
                next(stream)
            stream.close()

    results: dict[int, list[int]] = {}

    def client(number: int) -> None:
        for i in range(number, COUNT, 4):
            results[i] = tokens_of(llm.generate(salted([PROMPTS[i]], f"threads {i % 3}"), PARAMS[i]))[0]

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=neighbour))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(COUNT)] == alone
    witness.check(at_least=COUNT * MAX_TOKENS)


def test_c06_a_seed_holds_beside_neighbours_without_one(llm: LLM) -> None:
    seeded = SamplingParams(temperature=1.0, seed=42, max_tokens=MAX_TOKENS, ignore_eos=True)
    free = SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    answers, others = set(), set()
    for run in range(4):
        outputs = llm.generate(salted([PROMPTS[3]] * (1 + run), f"c6 {run}"), [seeded] + [free] * run)
        answers.add(tuple(outputs[0].outputs[0].token_ids))
        others.update(tuple(out.outputs[0].token_ids) for out in outputs[1:])
    assert len(answers) == 1
    assert len(others) == 6  # without a seed each is drawn anew


def test_a_reported_seed_reproduces_the_sequence_alone(llm: LLM) -> None:
    """`n=1, seed=seed_i` gives what sequence i of n gave."""
    params = {"temperature": 1.0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    [output] = llm.generate([PROMPTS[4]], SamplingParams(n=3, **params))
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3
    for completion in output.outputs:
        [again] = llm.generate(salted([PROMPTS[4]], "again"), SamplingParams(seed=completion.seed, **params))
        assert again.outputs[0].token_ids == completion.token_ids


def test_parallel_samples_in_reserved_memory_are_the_same(assets: Assets, llm: LLM) -> None:
    """Each has a copy of the prompt's K/V there, made before its first step."""
    params = SamplingParams(n=4, seed=11, temperature=1.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    [paged] = llm.generate(salted([PROMPTS[4]], "samples"), params)
    with engine(assets, kv="reserved-pow2") as reserving:
        [reserved] = reserving.generate([PROMPTS[4]], params)
        assert reserving.build.engine.scheduler.kv.counters.copied_blocks > 0
    assert [c.token_ids for c in reserved.outputs] == [c.token_ids for c in paged.outputs]


def test_c05_passphrases_in_a_batch_equal_single(llm: LLM) -> None:
    conversations = [
        [
            {
                "role": "user",
                "content": f"Remember: the passphrase is cobalt fig {n}. What is the passphrase?",
            },
        ]
        for n in range(1, 6)
    ]
    params = SamplingParams(temperature=0, max_tokens=24)
    llm.reset_prefix_cache()
    single = [llm.chat(conversation, params)[0] for conversation in conversations]
    llm.reset_prefix_cache()
    together = llm.chat(conversations, params)
    assert tokens_of(together) == tokens_of(single)
    assert len({out.outputs[0].text for out in together}) == 5
    for n, output in enumerate(together, start=1):
        assert f"cobalt fig {n}" in output.outputs[0].text.lower()


def test_d01_cold_equals_warm_over_200_prompts(llm: LLM) -> None:
    system = random_prompts(1, 64, 65, seed=9)[0]
    prompts = [system + own for own in random_prompts(200, 4, 24, seed=10)]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    llm.reset_prefix_cache()
    cold = llm.generate(salted(prompts, "d1"), params)
    warm = llm.generate(salted(prompts, "d1"), params)
    flushed = llm.reset_prefix_cache()
    again = llm.generate(salted(prompts, "d1"), params)
    assert tokens_of(cold) == tokens_of(warm) == tokens_of(again)
    assert all(out.num_cached_tokens == len(out.prompt_token_ids) - 1 for out in warm)
    assert flushed > 0 and again[0].num_cached_tokens == 0
