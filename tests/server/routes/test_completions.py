"""POST /v1/completions over a random model: shapes, streams, several prompts, what is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

GREEDY = {"temperature": 0, "max_tokens": 6}


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def events(url: str, **body: Any) -> list[dict[str, Any]]:
    """The JSON of a stream's events, which must end with [DONE]."""
    found = []
    with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line:
                found.append(line.removeprefix("data: "))
    assert found.pop() == "[DONE]"
    return [json.loads(one) for one in found]


def test_text_and_token_ids_give_the_same(tiny_url: str) -> None:
    text = post(tiny_url, prompt="Once upon", **GREEDY).json()
    ids = post(tiny_url, prompt=[ord(c) - ord(" ") for c in "Once upon"], **GREEDY).json()
    assert text["choices"][0]["text"] == ids["choices"][0]["text"]
    assert text["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 6,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": text["usage"]["prompt_tokens_details"]["cached_tokens"]},
    }
    assert ids["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


def test_several_prompts_with_n_are_numbered_in_order(tiny_url: str) -> None:
    prompts = ["alpha", "beta", "gamma"]
    answer = post(tiny_url, prompt=prompts, n=2, seed=3, temperature=1, max_tokens=5).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    alone = post(tiny_url, prompt="beta", n=2, seed=3, temperature=1, max_tokens=5).json()
    assert [c["text"] for c in answer["choices"][2:4]] == [c["text"] for c in alone["choices"]]


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_joined_is_the_whole_answer(tiny_url: str, echo: bool) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "seed": 5, "max_tokens": 7, "logprobs": 2, "echo": echo}
    whole = post(tiny_url, **body).json()
    chunks = events(tiny_url, **body, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 28
    texts, logprobs, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)]
    reasons = [None] * 4
    for chunk in chunks[:-1]:
        assert chunk["usage"] is None
        [choice] = chunk["choices"]
        index = choice["index"]
        texts[index] += choice["text"]
        logprobs[index] += choice["logprobs"]["token_logprobs"]
        offsets[index] += choice["logprobs"]["text_offset"]
        reasons[index] = choice["finish_reason"] or reasons[index]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert logprobs == [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]]
    assert offsets == [choice["logprobs"]["text_offset"] for choice in whole["choices"]]
    assert reasons == ["length"] * 4
    if echo:
        assert texts[0].startswith("one")
        assert logprobs[0][0] is None
        assert len(logprobs[0]) == 3 + 7


@pytest.mark.parametrize("body", [{"beam_width": 3, "n": 2}, {"best_of": 4, "n": 2, "seed": 1}])
def test_beams_and_the_best_are_streamed_at_the_end(tiny_url: str, body: dict[str, Any]) -> None:
    body = {**body, "prompt": "abc", "max_tokens": 5, "logprobs": 1}
    whole = post(tiny_url, **body).json()["choices"]
    chunks = [chunk["choices"][0] for chunk in events(tiny_url, **body)]
    assert len(whole) == 2 and chunks == whole


@pytest.mark.parametrize(
    ("body", "param", "names"),
    [
        ({"prompt": "x", "max_tokenz": 3}, "max_tokenz", ["max_tokenz", "max_tokens"]),
        ({"prompt": []}, "prompt", ["prompt is empty"]),
        ({"prompt": ["a", ""]}, "prompt", ["the prompt is empty"]),
        ({"prompt": "x", "logprobs": 21}, "logprobs", ["logprobs is out of range"]),
        ({"prompt": "x", "max_tokens": 5000}, "prompt", ["Set max_tokens to at most"]),
        ({"prompt": "x", "temperature": "1"}, "temperature", ["temperature", "'1'"]),
        ({"prompt": "x", "temperature": -1}, "temperature", ["temperature", "-1"]),
        ({"prompt": "x", "n": 0}, "n", ["n is out of range"]),
        ({"prompt": [10**9]}, "prompt", ["vocabulary"]),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", ["logit_bias", "'a'"]),
        ({"prompt": "x" * 5000}, "prompt", ["4096"]),
        ({}, "prompt", ["prompt", "required"]),
    ],
)
def test_what_is_wrong_is_said_by_name(
    tiny_url: str, body: dict[str, Any], param: str, names: list[str]
) -> None:
    response = post(tiny_url, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    for name in names:
        assert name in error["message"]
    assert error["param"] == param


def test_negative_seeds_are_seeds_but_for_the_one_that_means_none(tiny_url: str) -> None:
    def draw(seed: int) -> str:
        answer = post(tiny_url, prompt="abc", seed=seed, temperature=1, max_tokens=20, ignore_eos=True).json()
        text: str = answer["choices"][0]["text"]
        return text

    assert draw(-5) == draw(-5) != draw(-6)
    assert draw(-(2**63)) == draw(2**63)
    assert draw(-1) != draw(-1)
    refused = post(tiny_url, prompt="abc", seed=-(2**63) - 1)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")


def test_another_model_is_404_with_the_names_served(tiny_url: str) -> None:
    response = post(tiny_url, prompt="x", model="gpt-4")
    assert response.status_code == 404
    assert "tiny" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "model_not_found"
