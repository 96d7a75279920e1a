"""Promise 1 for requests of several sequences: parallel samples, the best of them, beams. In one batch with
ordinary ones and under every pressure, each answer equals that of the request alone with a cold cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leafage import LLM, SamplingParams
from leafage.build import Assets
from leafage.core.request import Request
from leafage.engine.output import RequestOutput
from tests.promises import Witness, engine, random_prompts, salted

pytestmark = pytest.mark.real_model

MAX_TOKENS = 12
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "n": 3},
    {"beam_width": 4, "n": 4},
    {"temperature": 0.8, "best_of": 4, "n": 2, "top_p": 0.95},
    {"beam_width": 2, "length_penalty": 0.0, "early_stopping": True},
    {"temperature": 1.0, "n": 2, "repetition_penalty": 1.2},
    {"beam_width": 8, "n": 2, "repetition_penalty": 1.1, "early_stopping": "never"},
]
COUNT = 2 * len(KINDS)
FEW = slice(len(KINDS))
"""One of each kind."""

PROMPTS = random_prompts(COUNT, 5, 60, seed=31)
PARAMS = [
    SamplingParams(**KINDS[i % len(KINDS)], seed=500 + i, max_tokens=MAX_TOKENS, logprobs=1, ignore_eos=True)
    for i in range(COUNT)
]
NEED = sum(len(prompt) + own.num_sequences * MAX_TOKENS for prompt, own in zip(PROMPTS, PARAMS, strict=True))
"""Tokens of K/V if all ran at once."""

Answers = list[list[tuple[Any, ...]]]


def answers_of(outputs: list[RequestOutput]) -> Answers:
    """Everything that must not change, log-probabilities to the last bit."""
    return [
        [
            (answer.token_ids, answer.cumulative_logprob, answer.text, answer.finish_reason, answer.seed)
            for answer in output.outputs
        ]
        for output in outputs
    ]


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


@pytest.fixture(scope="module")
def llm(assets: Assets, witness: Witness) -> Iterator[LLM]:
    with engine(assets) as llm:
        witness.watch(llm)
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM, witness: Witness) -> Answers:
    alone = []
    for i, (prompt, own) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        alone += answers_of(llm.generate(salted([prompt], f"alone {i}"), own))
    witness.check(at_least=0)
    return alone


@pytest.mark.parametrize("batch", [2, COUNT])
def test_d02_gangs_in_any_batch(llm: LLM, witness: Witness, alone: Answers, batch: int) -> None:
    for first in range(0, COUNT, batch):
        group = slice(first, first + batch)
        outputs = llm.generate(salted(PROMPTS[group], f"batch {batch}"), PARAMS[group])
        assert answers_of(outputs) == alone[group]
    witness.check(at_least=COUNT * MAX_TOKENS)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"max_num_batched_tokens": 19, "max_num_seqs": 13, "block_size": 8},
        {"threads": 1, "block_size": 4},
        {"prefix_index": "none", "block_size": 1},
        {"prefix_index": "hash_chain"},
        {"kv": "reserved-pow2"},
    ],
    ids=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()),
)
def test_settings_change_nothing_for_gangs(
    assets: Assets, witness: Witness, alone: Answers, settings: dict[str, Any]
) -> None:
    with engine(assets, **settings) as llm:
        witness.watch(llm)
        assert answers_of(llm.generate(PROMPTS[FEW], PARAMS[FEW])) == alone[FEW]
    witness.check(at_least=len(KINDS) * MAX_TOKENS)


def test_d01_gangs_cold_warm_and_flushed(llm: LLM, witness: Witness, alone: Answers) -> None:
    def run() -> list[RequestOutput]:
        outputs = llm.generate(salted(PROMPTS[FEW], "d1"), PARAMS[FEW])
        assert answers_of(outputs) == alone[FEW]
        return outputs

    llm.reset_prefix_cache()
    run()
    assert all(output.num_cached_tokens == len(output.prompt_token_ids) - 1 for output in run())
    assert llm.reset_prefix_cache() > 0
    assert run()[0].num_cached_tokens == 0
    witness.check(at_least=3 * len(KINDS) * MAX_TOKENS)


@pytest.mark.parametrize(
    ("preemption", "block_size"), [("swap", 16), ("swap to a file", 4), ("recompute", 4), ("recompute", 16)]
)
def test_m05_gangs_with_30_percent_of_the_memory(
    assets: Assets, witness: Witness, alone: Answers, preemption: str, block_size: int, tmp_path: Path
) -> None:
    """Preempted while they draw or search, they go on bit by bit where they were."""
    settings: dict[str, Any] = {
        "kv_cache_tokens": NEED * 3 // 10,
        "block_size": block_size,
        "watermark": 0.0,
        "preemption": preemption.split()[0],
        "swap_bytes": 0 if preemption == "recompute" else 64 << 20,
    }
    if preemption.endswith("file"):
        settings["swap_path"] = str(tmp_path / "swap")
    with engine(assets, **settings) as llm:
        witness.watch(llm)
        preempted = watch_preemptions(llm)
        assert answers_of(llm.generate(PROMPTS, PARAMS)) == alone
        stats = llm.stats()
    assert {"beams", "samples"} <= preempted
    swaps = preemption != "recompute"
    assert (stats["num_swap_outs"] > 0) == swaps and stats["num_swap_ins"] == stats["num_swap_outs"]
    assert stats["swap_refused"] == stats["swap_transfers_lost"] == 0
    witness.check(at_least=COUNT * MAX_TOKENS)


def watch_preemptions(llm: LLM) -> set[str]:
    """Fills with the kinds of gangs that ran as several sequences when they were preempted."""
    admission = llm.build.engine.scheduler.admission
    requeue = admission._requeue
    kinds: set[str] = set()

    def watched(request: Request) -> None:
        if len(request.live) > 1:
            kinds.add("samples" if request.beams is None else "beams")
        requeue(request)

    admission._requeue = watched  # type: ignore[method-assign]
    return kinds


def test_int8_blocks_are_forked_and_swapped_bit_by_bit(assets: Assets) -> None:
    """With its scales, a block is one piece of memory in any format."""
    settings: dict[str, Any] = {"kv_cache_dtype": "int8", "block_size": 4}
    witness = Witness()
    with engine(assets, **settings) as llm:
        witness.watch(llm)
        roomy = answers_of(llm.generate(PROMPTS, PARAMS))
    pool = {"kv_cache_tokens": NEED * 3 // 10, "swap_bytes": 64 << 20, "preemption": "swap"}
    with engine(assets, **settings, **pool) as llm:
        witness.watch(llm)
        preempted = watch_preemptions(llm)
        assert answers_of(llm.generate(PROMPTS, PARAMS)) == roomy
        assert llm.stats()["num_swap_ins"] > 0
    assert {"beams", "samples"} <= preempted
    witness.check(at_least=COUNT * MAX_TOKENS)


def test_gangs_that_are_left_early_leave_nothing_behind(llm: LLM, witness: Witness, alone: Answers) -> None:
    """Streams closed while they draw or search, beside requests that go on."""
    streams = [
        llm.stream(salted([prompt[::-1]], "left")[0], own)
        for prompt, own in zip(PROMPTS[FEW], PARAMS[FEW], strict=True)
    ]
    next(streams[1])
    for stream in streams:
        stream.close()
    assert answers_of(llm.generate(salted(PROMPTS[FEW], "beside"), PARAMS[FEW])) == alone[FEW]
    stats = llm.stats()
    assert stats["num_requests_running"] == stats["num_requests_waiting"] == 0
    assert stats["kv_blocks_active"] == 0
    witness.check(at_least=len(KINDS) * MAX_TOKENS)


def test_c06_a_seed_holds_beside_gangs_without_one(llm: LLM) -> None:
    seeded = SamplingParams(temperature=1.0, n=3, seed=42, max_tokens=MAX_TOKENS, ignore_eos=True)
    free = [
        SamplingParams(temperature=1.0, n=2, max_tokens=MAX_TOKENS, ignore_eos=True),
        SamplingParams(beam_width=3, max_tokens=MAX_TOKENS, ignore_eos=True),
        SamplingParams(temperature=1.0, best_of=3, max_tokens=MAX_TOKENS, ignore_eos=True),
    ]
    runs = [
        llm.generate(salted([PROMPTS[3]] * (1 + run), f"c6 {run}"), [seeded, *free[:run]]) for run in range(4)
    ]
    assert all(answers_of(outputs[:1]) == answers_of(runs[0]) for outputs in runs)
    drawn = [tuple(answer.token_ids) for outputs in runs[1:] for answer in outputs[1].outputs]
    assert len(set(drawn)) == len(drawn), "without a seed each is drawn anew"


def test_best_of_gives_the_most_likely_answers_and_their_seeds(llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "max_tokens": MAX_TOKENS, "logprobs": 2, "ignore_eos": True}
    [best] = llm.generate([PROMPTS[4]], SamplingParams(n=3, best_of=8, seed=9, **params))
    [every] = llm.generate([PROMPTS[4]], SamplingParams(n=8, seed=9, **params))
    ranked = sorted(every.outputs, key=lambda answer: -(answer.cumulative_logprob or 0.0))
    assert [answer.seed for answer in best.outputs] == [answer.seed for answer in ranked[:3]]
    assert [answer.index for answer in best.outputs] == [0, 1, 2]
    for answer in best.outputs:
        [again] = llm.generate(salted([PROMPTS[4]], "again"), SamplingParams(seed=answer.seed, **params))
        assert again.outputs[0].token_ids == answer.token_ids
        assert again.outputs[0].cumulative_logprob == answer.cumulative_logprob
        assert again.outputs[0].logprobs == answer.logprobs
