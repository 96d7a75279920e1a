"""POST /v1/completions over a model that says what the test tells it: logprobs, echo, ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import Completion

from leafage.core.batch import SampledToken
from tests.server.scripted import Served, scripted

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(lambda prompt, index: prompt.partition("|")[0]) as served:
        yield served


def test_a_whole_answer_has_every_field(served: Served) -> None:
    answer = served.post(PATH, prompt=["ab|", "c|"], n=2).json()
    for choice in answer["choices"]:
        Completion.model_validate({**answer, "choices": [choice]}, strict=True)
    assert answer.pop("id").startswith("cmpl-") and answer.pop("created") > 1_600_000_000
    assert answer["choices"] == [
        {"index": i, "text": text, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        for i, text in enumerate(["ab", "ab", "c", "c"])
    ]
    assert (answer["object"], answer["model"]) == ("text_completion", "scripted")
    assert answer["system_fingerprint"] == "fp_scripted"
    assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 10


def test_cached_tokens_are_those_of_all_prompts(served: Served) -> None:
    prompts = ["|first of two prompts", "|second, and longer than the first"]
    served.post(PATH, prompt=prompts)
    usage = served.post(PATH, prompt=prompts, n=3).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == sum(map(len, prompts)) - 2
    *_, last, _ = served.events(PATH, prompt=prompts, n=3, stream_options={"include_usage": True})
    assert last["usage"] == usage


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_what_best_of_left_out(stream: bool) -> None:
    """As OpenAI does: all of it was generated. The answers' lengths are 4, 1, 2 and 3 tokens."""
    with scripted(lambda prompt, index: "abc"[: (index + 3) % 4]) as served:
        body: dict[str, Any] = {"prompt": ["x", "yy"], "best_of": 4, "n": 2, "temperature": 1}
        if stream:
            usage = served.events(PATH, **body, stream_options={"include_usage": True})[-2]["usage"]
        else:
            usage = served.post(PATH, **body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 20, 23)


def test_usage_of_beams_counts_the_answers(served: Served) -> None:
    answer = served.post(PATH, prompt="ab|", beam_width=3, n=2, max_tokens=3, return_token_ids=True).json()
    returned = sum(len(choice["token_ids"]) for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == returned > 0


@pytest.mark.parametrize("text", ["a😊b", "살\u0301x", "👨‍👩‍👧 z"])
def test_s06_offsets_count_characters_and_parts_of_one_are_bytes(served: Served, text: str) -> None:
    choice = served.post(PATH, prompt=f"{text}|", logprobs=0, echo=True, max_tokens=60).json()["choices"][0]
    whole = f"{text}|{text}"
    assert choice["text"] == whole
    logprobs = choice["logprobs"]
    *tokens, end = logprobs["tokens"]
    assert end == "<|im_end|>"
    expected, offsets = [], []
    for number, character in enumerate(whole):
        data = character.encode()
        expected += [character] if len(data) == 1 else [f"bytes:\\x{byte:02x}" for byte in data]
        offsets += [number] * len(data)
    assert tokens == expected
    assert logprobs["text_offset"] == [*offsets, len(whole)]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {expected[1]: -0.5}


def test_offsets_of_a_stream_go_on(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "a😊b|", "logprobs": 1, "echo": True, "n": 2}
    whole = served.post(PATH, **body).json()["choices"]
    parts: list[list[Any]] = [[], []]
    for chunk in served.events(PATH, **body)[:-1]:
        [choice] = chunk["choices"]
        parts[choice["index"]].append(choice)
    for choice, pieces in zip(whole, parts, strict=True):
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        for key, values in choice["logprobs"].items():
            assert [one for piece in pieces for one in piece["logprobs"][key]] == values


def test_tokens_with_the_same_text_do_not_hide_the_own_one() -> None:
    """256 and 257 are special tokens; a byte's text may equal another's only where both are no character."""
    token = SampledToken(0xF0, -3.0, 3, [(0xF1, -0.1), (0xF2, -0.2)])
    with scripted(lambda prompt, index: [token]) as served:
        logprobs = served.post(PATH, prompt="x", logprobs=2).json()["choices"][0]["logprobs"]
        tops = {"bytes:\\xf0": -3.0, "bytes:\\xf1": -0.1, "bytes:\\xf2": -0.2}
        assert logprobs["top_logprobs"][0] == tops


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_and_echo_scores_the_prompt(served: Served, stream: bool) -> None:
    body = {"prompt": "score|", "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        body["stream_options"] = {"include_usage": True}
        chunk, last, _ = served.events(PATH, **body)
        [choice], usage = chunk["choices"], last["usage"]
    else:
        answer = served.post(PATH, **body).json()
        [choice], usage = answer["choices"], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == ("score|", "length")
    assert len(choice["logprobs"]["tokens"]) == 6
    assert (usage["completion_tokens"], usage["total_tokens"]) == (0, 6)


def test_prompt_logprobs_come_once_for_each_answer(served: Served) -> None:
    whole = served.post(PATH, prompt="ab|", prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]
    assert whole[0] is None and whole[1][str(ord("b"))]["logprob"] == -0.5
    chunks = served.events(PATH, prompt="ab|", prompt_logprobs=1)[:-1]
    found = [
        choice["prompt_logprobs"] for c in chunks for choice in c["choices"] if "prompt_logprobs" in choice
    ]
    assert found == [whole]


def test_token_ids_on_demand(served: Served) -> None:
    [choice] = served.post(PATH, prompt="ab|", return_token_ids=True).json()["choices"]
    assert choice["prompt_token_ids"] == list(b"ab|") and choice["token_ids"] == [*b"ab", 258]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": 5}, "prompt: must be a text, token ids, or a list of either, got 5"),
        ({"prompt": ["a", 1]}, "prompt: must be a text"),
        ({"prompt": [None] * 100_000}, "prompt: must be a text"),
        ({"prompt": "x", "suffix": "y"}, "suffix: nothing can be put in front of a suffix here"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is out of range"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["x"] * 1025}, "1024"),
        ({"prompt": "x", "stop": [1]}, "stop: must be a string or a list of strings"),
        ({"prompt": "x", "stream_options": {}}, "stream_options is for streams"),
        ({"prompt": "x", **{f"unknown{i}": i for i in range(5000)}}, "mistakes; limit: 1000"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, body: dict[str, Any], words: str) -> None:
    response = served.post(PATH, **body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert words in message and len(message) < 1000


def test_a_field_with_an_endless_name_is_cut(served: Served) -> None:
    message = served.post(PATH, prompt="x", **{"x" * 100_000: 1}).json()["error"]["message"]
    assert len(message) < 1000


def test_neutral_fields_are_accepted(served: Served) -> None:
    nulls = dict.fromkeys(
        ("best_of", "echo", "logprobs", "n", "stream", "stop", "suffix", "user", "max_tokens")
    )
    assert served.post(PATH, prompt="x|", **nulls).status_code == 200
    assert served.post(PATH, prompt="x|", suffix="", best_of=1).status_code == 200
