"""Beam search on the real model: equal to transformers, equal to a search that computes everything again at
each step, and what users read of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafage import LLM, SamplingParams
from leafage.build import Assets, load_assets
from leafage.config import EngineConfig
from leafage.engine.output import CompletionOutput
from tests.core.naive_beam import naive_beam_search
from tests.models.tiny_models import GOLDEN
from tests.promises import engine

pytestmark = pytest.mark.real_model

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "beams_smollm2.json").read_text())
TOLERANCE = 1e-3
"""Of sums of log-probabilities."""

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def assets(smollm2_path: Path) -> Assets:
    return load_assets(EngineConfig(model=str(smollm2_path)))


@pytest.fixture(scope="module")
def llm(assets: Assets) -> Iterator[LLM]:
    with engine(assets) as llm:
        yield llm


def summed(answer: CompletionOutput) -> float:
    assert answer.cumulative_logprob is not None
    return answer.cumulative_logprob


def check_golden(path: Path, max_tokens: int) -> None:
    """20 prompts in one batch, in float32, against scripts/golden/beams.py."""
    assets = load_assets(EngineConfig(model=str(path), compute="float32"))
    cases = [case for case in CASES if case["max_tokens"] == max_tokens]
    names = ("beam_width", "n", "max_tokens", "length_penalty", "early_stopping")
    params = [SamplingParams(**{name: case[name] for name in names}) for case in cases]
    with engine(assets, kv_cache_tokens=16384) as llm:
        outputs = llm.generate([case["prompt"] for case in cases], params)
    worst = 0.0
    for case, output in zip(cases, outputs, strict=True):
        assert [answer.token_ids for answer in output.outputs] == [a["tokens"] for a in case["answers"]]
        for answer, expected in zip(output.outputs, case["answers"], strict=True):
            discount = len(answer.token_ids) ** case["length_penalty"]
            worst = max(worst, abs(summed(answer) - expected["score"] * discount))
            stops = answer.token_ids[-1] in assets.tokenizer.eos_ids
            assert answer.finish_reason == ("stop" if stops else "length")
    print(f"largest difference of summed log-probabilities {worst:.2g}")
    assert len(cases) == 20 and worst < TOLERANCE


def test_b03_beam_search_equals_transformers(smollm2_path: Path) -> None:
    check_golden(smollm2_path, 12)


@pytest.mark.soak
def test_b03_beam_search_equals_transformers_for_64_tokens(smollm2_path: Path) -> None:
    check_golden(smollm2_path, 64)


@pytest.mark.parametrize(
    ("text", "width", "max_tokens", "params"),
    [
        ("The three laws of robotics are", 2, 20, {}),
        (CHAT.format("What is the capital of France?"), 4, 16, {"early_stopping": True, "n": 4}),
        ("def fibonacci(n):\n    ", 8, 12, {"length_penalty": 0.0, "early_stopping": "never", "n": 3}),
    ],
)
def test_beams_equal_a_search_that_computes_every_step_from_scratch(
    assets: Assets, llm: LLM, text: str, width: int, max_tokens: int, params: dict[str, Any]
) -> None:
    """The fast kernels give the naive search one prompt at a time, without a cache."""
    prompt = assets.tokenizer.encode(text, parse_special=True)
    [found] = llm.generate([prompt], SamplingParams(beam_width=width, max_tokens=max_tokens, **params))
    best = SamplingParams(max_tokens=1, temperature=0, logprobs=20, ignore_eos=True)

    with engine(assets, prefix_index="none") as scratch:

        def row(tokens: list[int]) -> np.ndarray:
            """The 20 most likely tokens are more than a beam's share of the candidates."""
            [output] = scratch.generate([tokens], best)
            assert output.outputs[0].logprobs is not None
            values = np.full(scratch.build.model.vocab_size, -np.inf)
            for token_id, entry in output.outputs[0].logprobs[0].items():
                values[token_id] = entry.logprob
            return values

        expected = naive_beam_search(
            row,
            prompt,
            width=width,
            max_tokens=max_tokens,
            stop_ids=frozenset(assets.tokenizer.eos_ids),
            **{name: value for name, value in params.items() if name != "n"},
        )
    answers = expected[: params.get("n", 1)]
    assert [answer.token_ids for answer in found.outputs] == [answer.tokens for answer in answers]
    for got, answer in zip(found.outputs, answers, strict=True):
        discount = len(answer.tokens) ** params.get("length_penalty", 1.0)
        assert summed(got) == pytest.approx(answer.score * discount, abs=1e-4)


@pytest.mark.parametrize("include", [False, True])
def test_b04_beams_with_logprobs_and_stop_strings(assets: Assets, llm: LLM, include: bool) -> None:
    """Texts, finish reasons and log-probabilities agree, streamed or not."""
    stops = [",", "\n\n", " formula"]
    params = SamplingParams(
        beam_width=4, n=4, max_tokens=24, logprobs=3, stop=stops, include_stop_str_in_output=include
    )
    prompts = [
        assets.tokenizer.encode(text, parse_special=True)
        for text in (
            CHAT.format("What is the capital of France?"),
            CHAT.format("Write a poem about trees."),
            "Once upon a time",
            "The chemical formula of water",
        )
    ]
    kinds = set()
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
        scores = [summed(answer) / len(answer.token_ids) for answer in output.outputs]
        assert scores == sorted(scores, reverse=True)
        for answer in output.outputs:
            kinds.add((answer.finish_reason, answer.stop_reason))
            check_answer(assets, answer, stops, include)
        pieces = list(llm.stream(prompt, params))
        for i, answer in enumerate(output.outputs):
            own = [part for piece in pieces for part in piece.outputs if part.index == i]
            assert "".join(part.text for part in own) == answer.text
            assert [token for part in own for token in part.token_ids] == answer.token_ids
            assert own[-1].finish_reason == answer.finish_reason and own[-1].stop_reason == answer.stop_reason
            assert [entry for part in own for entry in part.logprobs or []] == answer.logprobs
    assert len(kinds) >= 3, "several stop strings, and ends by another reason"


def check_answer(assets: Assets, answer: CompletionOutput, stops: list[str], include: bool) -> None:
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
    entries = [position[token] for position, token in zip(answer.logprobs, answer.token_ids, strict=True)]
    assert sum(entry.logprob for entry in entries) == pytest.approx(summed(answer), abs=1e-9)
    for position, entry in zip(answer.logprobs, entries, strict=True):
        assert next(iter(position.values())) == entry
        assert len(position) == (3 if entry.rank <= 3 else 4)
        assert entry.rank == 1 + sum(other.logprob > entry.logprob for other in position.values())
    text = assets.tokenizer.decode(answer.token_ids)
    if isinstance(answer.stop_reason, str):
        assert answer.finish_reason == "stop" and answer.stop_reason in stops
        before, found, _ = text.partition(answer.stop_reason)
        assert found and answer.text == before + (found if include else "")
        assert not any(stop in assets.tokenizer.decode(answer.token_ids[:-1]) for stop in stops)
    else:
        assert answer.finish_reason in ("stop", "length") and answer.text == text
        assert not any(stop in text for stop in stops)
