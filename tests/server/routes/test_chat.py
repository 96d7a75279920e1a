"""POST /v1/chat/completions over a model that says what the test tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from leafage.core.batch import Batch, SampledToken
from leafage.errors import ExecutorError
from tests.server.scripted import END, Served, scripted

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
HARD = ["삼겹살", "😊", "🇩🇪🇰🇷", "👨‍👩‍👧‍👦", "é", "日本 x", "a\u2028b\u0085c\u2029", "नम", "🧑🏽‍🚀"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(lambda prompt, index: _said(prompt) + "!" * index) as served:
        yield served


def _said(prompt: str) -> str:
    """The last user message, back."""
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def say(text: str) -> dict[str, Any]:
    """A request whose answer is this text."""
    return {"messages": [{"role": "user", "content": text}]}


def joined(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """Of each choice: the content, its tokens, their bytes and the finish reason."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            one = found.setdefault(choice["index"], {"content": "", "tokens": [], "finish_reason": None})
            if not one["content"] and not one["tokens"]:
                assert choice["delta"].get("role", "assistant") == "assistant"
            one["content"] += choice["delta"].get("content", "")
            one["tokens"] += (choice["logprobs"] or {"content": []})["content"]
            assert one["finish_reason"] is None
            one["finish_reason"] = choice["finish_reason"]
    return found


def test_a_whole_answer_has_every_field(served: Served) -> None:
    answer = served.post(PATH, **say("yes"), service_tier="auto", metadata={"a": "b"}, logprobs=True).json()
    ChatCompletion.model_validate(answer, strict=True)
    assert answer.pop("id").startswith("chatcmpl-") and answer.pop("created") > 1_600_000_000
    [choice] = answer.pop("choices")
    assert len(choice.pop("logprobs")["content"]) == 4
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "yes", "refusal": None, "annotations": []},
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert answer == {
        "object": "chat.completion",
        "model": "scripted",
        "system_fingerprint": "fp_scripted",
        "service_tier": "default",
        "metadata": {"a": "b"},
        "usage": {
            "prompt_tokens": answer["usage"]["prompt_tokens"],
            "completion_tokens": 4,
            "total_tokens": answer["usage"]["prompt_tokens"] + 4,
            "prompt_tokens_details": {
                "cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            },
        },
    }


def test_the_prompt_is_the_conversation_as_the_template_writes_it(served: Served) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert served.post(PATH, messages=messages).status_code == 200
    assert served.script.prompts[-1] == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_t01_control_tokens_in_a_message_stay_text(served: Served) -> None:
    """<|im_start|> is one id where the template writes it, and its characters where a user does."""
    served.post(PATH, **say("<|im_start|>system"))
    ids = served.post("/tokenize", **say("<|im_start|>system")).json()["tokens"]
    assert ids.count(257) == 2 and ids.count(END) == 1


def test_chunks_are_in_form_and_the_first_says_who_speaks(served: Served) -> None:
    *chunks, done = served.events(PATH, **say("ok"), stream_options={"include_usage": True})
    assert done == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert (chunk["id"], chunk["system_fingerprint"]) == (chunks[0]["id"], "fp_scripted")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 3
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["choices"][0]["delta"] == {}


@pytest.mark.parametrize("text", HARD)
def test_s06_characters_of_several_tokens_come_whole(served: Served, text: str) -> None:
    """One token for each byte: no half character is sent, and their bytes are exact."""
    body = {**say(text), "logprobs": True, "top_logprobs": 2}
    whole = served.post(PATH, **body).json()["choices"][0]
    assert whole["message"]["content"] == text
    streamed = joined(served.events(PATH, **body)[:-1])[0]
    assert streamed["content"] == text and "\ufffd" not in str(streamed["content"])
    assert streamed["tokens"] == whole["logprobs"]["content"]
    *tokens, end = whole["logprobs"]["content"]
    assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == text
    assert (end["token"], end["bytes"]) == ("<|im_end|>", None)
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


TEXTS = st.lists(st.sampled_from([*"ab \n", *HARD, "<|im_end|>", "stop"]), max_size=8).map("".join)


@settings(max_examples=60)
@given(
    text=TEXTS,
    n=st.integers(1, 3),
    logprobs=st.booleans(),
    stop=st.lists(st.sampled_from(["b", "살", "stop", "\n", "ab"]), max_size=3),
    length=st.integers(1, 40),
    include=st.booleans(),
)
def test_a_stream_joined_is_the_whole_answer(
    served: Served, text: str, n: int, logprobs: bool, stop: list[str], length: int, include: bool
) -> None:
    body: dict[str, Any] = {
        **say(text),
        "n": n,
        "logprobs": logprobs,
        "stop": stop,
        "max_tokens": length,
        "include_stop_str_in_output": include,
    }
    whole = served.post(PATH, **body).json()
    *chunks, usage, done = served.events(PATH, **body, stream_options={"include_usage": True})
    assert done == "[DONE]"
    streamed = joined(chunks)
    assert len(streamed) == n
    for choice in whole["choices"]:
        one = streamed[choice["index"]]
        assert one["content"] == choice["message"]["content"]
        assert one["finish_reason"] == choice["finish_reason"]
        assert one["tokens"] == (choice["logprobs"] or {"content": []})["content"]
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_usage_counts_a_prompt_once_and_all_answers(served: Served) -> None:
    text = "count " * 10
    first = served.post(PATH, **say(text), n=3, max_tokens=5).json()["usage"]
    assert first["completion_tokens"] == 15
    again = served.post(PATH, **say(text), n=3, max_tokens=5).json()["usage"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
    *_, last, _ = served.events(PATH, **say(text), n=3, max_tokens=5, stream_options={"include_usage": True})
    assert last["usage"] == again


def test_usage_in_every_chunk_grows(served: Served) -> None:
    options = {"continuous_usage_stats": True}
    *chunks, _ = served.events(PATH, **say("abcd"), stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 5 and counts[0] == 1


@pytest.mark.parametrize(
    ("body", "reason", "stop_reason", "content"),
    [
        ({}, "stop", None, "stop words"),
        ({"max_tokens": 4}, "length", None, "stop"),
        ({"max_completion_tokens": 4}, "length", None, "stop"),
        ({"stop": " w"}, "stop", " w", "stop"),
        ({"stop": [" w"], "include_stop_str_in_output": True}, "stop", " w", "stop w"),
        ({"stop_token_ids": [ord("w")]}, "stop", ord("w"), "stop "),
        ({"stop": "st", "min_tokens": 3}, "stop", None, "stop words"),
        ({"ignore_eos": True, "max_tokens": 11}, "length", None, "stop words"),
        ({"ignore_eos": True, "max_tokens": 11, "skip_special_tokens": False}, "length", None, None),
    ],
)
def test_why_an_answer_ended(
    served: Served, body: dict[str, Any], reason: str, stop_reason: object, content: str | None
) -> None:
    [choice] = served.post(PATH, **say("stop words"), **body).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, stop_reason)
    assert choice["message"]["content"] == (content or "stop words<|im_end|>")


def test_p18_an_empty_answer_says_why(served: Served) -> None:
    answer = served.post(PATH, **say("")).json()
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 1


def test_s07_logprobs_that_json_cannot_carry(served: Served) -> None:
    """-inf and NaN become -9999, in the token itself and among the most likely ones."""
    lowest, none = float("-inf"), float("nan")
    token = SampledToken(ord("a"), none, 2, [(ord("b"), -0.1), (ord("a"), none), (ord("c"), lowest)])
    with scripted(lambda prompt, index: [token, SampledToken(ord("c"), lowest, 3, token.top)]) as served:
        body = {"messages": USER, "logprobs": True, "top_logprobs": 3}
        response = served.post(PATH, **body)
        assert response.status_code == 200
        a, c, _ = response.json()["choices"][0]["logprobs"]["content"]
        assert (a["logprob"], c["logprob"]) == (-9999.0, -9999.0)
        assert sorted(top["logprob"] for top in a["top_logprobs"]) == [-9999.0, -9999.0, -0.1]
        assert joined(served.events(PATH, **body)[:-1])[0]["tokens"][:2] == [a, c]
        old = served.post("/v1/completions", prompt="x", logprobs=3).json()["choices"][0]["logprobs"]
        assert old["token_logprobs"][:2] == [-9999.0, -9999.0]
        assert old["top_logprobs"][0] == {"a": -9999.0, "b": -0.1, "c": -9999.0}


def test_an_error_before_and_inside_a_stream_is_told_in_form() -> None:
    with scripted("a long answer") as served:
        served.script.fail = ExecutorError("the model broke", remedy="mend it")
        response = served.post(PATH, messages=USER)
        assert response.status_code == 500
        assert response.json()["error"] == {
            "message": "the model broke. Mend it",
            "type": "server_error",
            "param": None,
            "code": None,
        }

        steps: list[Batch] = []

        def fail_later(batch: Batch) -> None:
            steps.append(batch)
            if len(steps) == 5:
                raise ExecutorError("the model broke")

        served.script.on_step = fail_later
        *chunks, error, done = served.events(PATH, messages=USER)
        assert joined(chunks)[0]["content"] == "a lo"
        assert error["error"]["message"] == "the model broke" and done == "[DONE]"
        assert served.post(PATH, messages=USER).status_code == 200


def test_p18_a_request_aborted_from_outside_is_an_error_or_says_abort() -> None:
    """As a server does that drains too long: an error before the first token, what there is after it."""
    with scripted("x" * 2000) as served:
        steps: list[int] = []

        def abort(batch: Batch) -> None:
            steps.append(len(steps))
            if steps[-1] == after:
                served.context.engine._thread.abort([item.request_id for item in batch.items])

        served.script.on_step = abort
        for stream in (False, True):
            after, steps[:] = 0, []
            body = say(f"{stream} " + "long " * 500)  # its prompt takes two steps
            if stream:
                error, done = served.events(PATH, **body)
                assert error["error"]["code"] == "aborted" and done == "[DONE]"
            else:
                response = served.post(PATH, **body)
                assert response.status_code == 503 and response.json()["error"]["code"] == "aborted"
            after, steps[:] = 5, []
            body = {**say(f"short {stream}"), "max_tokens": 50}
            if stream:
                one = joined(served.events(PATH, **body)[:-1])[0]
                assert one["content"] == "x" * 6 and one["finish_reason"] == "abort"
            else:
                [choice] = served.post(PATH, **body).json()["choices"]
                assert choice["message"]["content"] == "x" * 6 and choice["finish_reason"] == "abort"


def test_continue_final_message_goes_on_with_the_last_one(served: Served) -> None:
    messages = [*USER, {"role": "assistant", "content": "The capital is"}]
    body = {"messages": messages, "add_generation_prompt": False}
    assert served.post(PATH, **body, continue_final_message=True).status_code == 200
    assert served.script.prompts[-1].endswith("<|im_start|>assistant\nThe capital is")
    assert served.post(PATH, **body).status_code == 200
    assert served.script.prompts[-1].endswith("The capital is<|im_end|>\n")
    both = served.post(PATH, messages=messages, continue_final_message=True)
    assert both.status_code == 400 and "add_generation_prompt" in both.json()["error"]["message"]


def test_names_that_the_template_does_not_write_are_told(served: Served) -> None:
    messages = [{"role": "user", "content": "hi", "name": "Ann"}]
    response = served.post(PATH, messages=messages)
    assert response.status_code == 200
    assert response.headers["X-Leafage-Ignored-Fields"] == "messages[0].name"
    assert "X-Leafage-Ignored-Fields" not in served.post(PATH, messages=USER).headers
    named = "{% for m in messages %}{{ m.name }}: {{ m.content }}\n{% endfor %}"
    with scripted(template=named) as with_names:
        response = with_names.post(PATH, messages=messages)
        assert "X-Leafage-Ignored-Fields" not in response.headers
        assert with_names.script.prompts == ["Ann: hi\n"]


def test_what_was_answered_can_be_sent_back(served: Served) -> None:
    message = served.post(PATH, **say("first")).json()["choices"][0]["message"]
    everything = {**message, "tool_calls": None, "function_call": None, "audio": None}
    response = served.post(PATH, messages=[*USER, everything, *USER])
    assert response.status_code == 200, response.text


def test_fields_that_change_nothing_are_accepted_in_their_neutral_form(served: Served) -> None:
    neutral: dict[str, Any] = {
        "store": False,
        "modalities": ["text"],
        "service_tier": "default",
        "verbosity": "medium",
        "reasoning_effort": "none",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "in_memory",
        "safety_identifier": "u",
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        **dict.fromkeys(
            ("audio", "prediction", "web_search_options", "functions", "function_call", "metadata")
        ),
        **dict.fromkeys(("stream", "n", "logprobs", "stop", "seed", "logit_bias", "user", "stream_options")),
    }
    response = served.post(PATH, messages=USER, **neutral)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"store": True}, "store", "not stored"),
        ({"modalities": ["text", "audio"]}, "modalities", "only text"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio", "only text"),
        ({"service_tier": "flex"}, "service_tier", "one service tier"),
        ({"verbosity": "high"}, "verbosity", "no verbosity"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction", "no use"),
        ({"web_search_options": {}}, "web_search_options", "searched"),
        ({"functions": [{"name": "f"}]}, "functions", "send tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention", "as memory lasts"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "not padded",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options is for streams"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "does not read it"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs",
            "reads no such variable",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "set by Leafage itself"),
        ({"response_format": {"type": "xml"}}, "response_format", "unknown response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not there yet"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is out of range; got 21"),
        (
            {"max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens is out of range; got 0",
        ),
        ({"max_tokens": 9999}, "messages", "Set max_tokens to at most"),
        ({"max_completion_tokens": 9999}, "messages", "Set max_completion_tokens to at most"),
        ({"n": 100}, "n", "n is larger than what can run at once"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "outside the vocabulary"),
        ({"tool_choice": "any"}, "tool_choice", "unknown tool_choice"),
        ({"temperature": -1}, "temperature", "from 0.0 to 100.0"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "3 and 4"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"foo-bar": 1}, "foo-bar", "unknown field 'foo-bar'"),
        ({"messages": []}, "messages", "messages is empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role", "alien"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a list of text parts"),
        ({"messages": "hi"}, "messages", "array, got 'hi'"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65, "64"),
        ({"session_id": "s", "n": 2}, "n", "got 2"),
        ({"session_id": ""}, "session_id", "at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    served: Served, body: dict[str, Any], param: str, words: str
) -> None:
    response = served.post(PATH, **{"messages": USER, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"] and error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert (error["code"] == "context_length_exceeded") == words.startswith("Set max")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
            "only text can be read, got a part of type 'image_url'",
        ),
        ({"type": "input_audio", "input_audio": {}}, "'input_audio'"),
        ({"type": "text"}, "messages[0].content[1].text"),
        ({"type": "text", "text": "x", "foo": 1}, "messages[0].content[1].foo"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_name(served: Served, part: Any, words: str) -> None:
    content = [{"type": "text", "text": "look"}, part]
    response = served.post(PATH, messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert words in message and "str" not in message.split()


def test_tolerance_lists_what_it_ignored() -> None:
    with scripted(unknown_fields="ignore") as served:
        kwargs = {"no_such": 1}
        response = served.post(
            PATH, messages=[{**USER[0], "mood": 1}], shape="x", chat_template_kwargs=kwargs
        )
        assert response.status_code == 200
        ignored = response.headers["X-Leafage-Ignored-Fields"].split(", ")
        assert ignored == ["chat_template_kwargs.no_such", "messages.mood", "shape"]
        assert served.post(PATH, messages=USER, store=True).status_code == 400


def test_the_template_gets_its_variables() -> None:
    template = "{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}"
    with scripted(template=template) as served:
        body = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
        assert served.post(PATH, messages=USER, **body).status_code == 200
        assert served.script.prompts == ["hi|low|False"]


def test_a_template_error_is_a_400_with_its_line() -> None:
    with scripted(template="{% for m in messages %}\n{{ m.content.nope() }}\n{% endfor %}") as served:
        response = served.post(PATH, messages=USER)
        assert response.status_code == 400
        assert "line 2" in response.json()["error"]["message"]


def test_a_base_model_says_that_it_has_no_template() -> None:
    with scripted(template=None) as served:
        response = served.post(PATH, messages=USER)
        assert response.status_code == 400
        assert "no chat template" in response.json()["error"]["message"]


def test_user_and_safety_identifier_name_the_tenant() -> None:
    tenants: list[str] = []
    with scripted() as served:
        served.context.metrics.on_finished = lambda request, _: tenants.append(request.tenant)
        served.post(PATH, messages=USER, user="a", safety_identifier="b")
        served.post(PATH, messages=USER, safety_identifier="b")
        served.post(PATH, messages=USER, cache_salt="s")
    assert tenants == ["a", "b", "s"]


def test_64_choices_stream_at_once(served: Served) -> None:
    *chunks, _ = served.events(PATH, **say("many"), n=64)
    streamed = joined(chunks)
    assert [streamed[i]["content"] for i in range(64)] == ["many" + "!" * i for i in range(64)]
