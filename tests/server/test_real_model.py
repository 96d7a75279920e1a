"""The real model through HTTP: the tokens of `LLM.generate`, and sessions that keep what was computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from leafage import LLM, SamplingParams
from leafage.build import Assets
from tests.promises import engine

pytestmark = pytest.mark.real_model

PROMPTS = ["The capital of France is", "삼겹살 is", "def fibonacci(n):", [504, 3575, 282]]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 0.9, "seed": 7, "max_tokens": 12, "n": 3, "top_p": 0.9},
    {"temperature": 1, "seed": 3, "max_tokens": 12, "best_of": 4, "n": 2},
    {"beam_width": 3, "n": 2, "max_tokens": 8},
    {"temperature": 0.7, "seed": 1, "max_tokens": 20, "stop": ["\n", " the"], "frequency_penalty": 0.5},
]


@pytest.fixture(scope="module")
def client(real_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=real_url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def llm(assets: Assets) -> Iterator[LLM]:
    with engine(assets) as llm:
        yield llm


def whole(client: httpx.Client, **body: Any) -> list[list[int]]:
    """Token ids of all choices."""
    answer = client.post("/v1/completions", json={**body, "return_token_ids": True}).json()
    return [choice["token_ids"] for choice in answer["choices"]]


def streamed(client: httpx.Client, count: int, **body: Any) -> list[list[int]]:
    """The same from a stream."""
    body = {**body, "return_token_ids": True, "stream": True}
    ids: list[list[int]] = [[] for _ in range(count)]
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids[choice["index"]] += choice["token_ids"]
    return ids


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_http_gives_the_tokens_of_generate(client: httpx.Client, llm: LLM, params: dict[str, Any]) -> None:
    """Whole and streamed, several prompts at once, drawn, searched and stopped."""
    text_prompts = PROMPTS[:3]
    base = llm.default_sampling_params
    settings = {key: value for key, value in params.items()}
    if "beam_width" in params:
        settings["temperature"] = 0.0
    wanted = llm.generate(text_prompts, SamplingParams(**{**_recommended(base, params), **settings}))
    expected = [one.token_ids for output in wanted for one in output.outputs]
    assert whole(client, prompt=text_prompts, **params) == expected
    assert streamed(client, len(expected), prompt=text_prompts, **params) == expected


def _recommended(base: SamplingParams, params: dict[str, Any]) -> dict[str, Any]:
    """What the model recommends, where drawing has a use for it."""
    if "beam_width" in params:
        return {}
    return {name: getattr(base, name) for name in ("temperature", "top_p", "top_k", "min_p")}


def test_token_ids_and_text_give_the_same(client: httpx.Client, llm: LLM) -> None:
    params = PARAMS[0]
    ids = llm._build.tokenizer.encode(PROMPTS[0])  # type: ignore[union-attr, arg-type]
    assert whole(client, prompt=ids, **params) == whole(client, prompt=PROMPTS[0], **params)


@pytest.mark.parametrize("session", [False, True])
def test_p16_each_turn_finds_the_last_one_cached(client: httpx.Client, session: bool) -> None:
    """Five turns. With a session the prompt begins with all that was computed, whatever the text; without one
    the text of an answer is encoded again, and now and then to other tokens."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer in one short sentence."}]
    questions = ["Who are you?", "What is 삼겹살?", "Write 😊 three times.", "Why?", "Thanks. And now?"]
    known: list[int] = []
    num_lost = 0
    for number, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        body: dict[str, Any] = {"messages": messages, "temperature": 1.2, "seed": number, "max_tokens": 40}
        body |= {"return_token_ids": True, "explain_cache": True, "cache_salt": str(session)}
        if session:
            body["session_id"] = "five turns"
        answer = client.post("/v1/chat/completions", json=body).json()
        choice = answer["choices"][0]
        messages.append(choice["message"])
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        num_lost += max(0, len(known) - 1 - cached)
        if session and number:
            assert answer["prompt_token_ids"][: len(known)] == known
            assert answer["cache"]["session"]["why"] is None
        is_cut = choice["finish_reason"] == "length"
        known = answer["prompt_token_ids"] + choice["token_ids"][: None if is_cut else -1]
    assert (num_lost == 0) == session
