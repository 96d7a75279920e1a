"""/v1/responses over a model that says what the test tells it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from leafage.core.batch import Batch
from leafage.errors import ExecutorError
from leafage.server.protocol.responses import ResponseObject
from tests.server.scripted import Served, Token, scripted

PATH = "/v1/responses"
GOLDEN = Path(__file__).parents[2] / "text" / "golden" / "templates.json.gz"
QWEN3 = json.loads(gzip.decompress(GOLDEN.read_bytes()))["Qwen-Qwen3-0.6B"]["source"]
LOGPROBS = ["message.output_text.logprobs"]
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def said(prompt: str, index: int) -> str:
    """The last user message, back."""
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(said) as served:
        yield served


@pytest.fixture(scope="module")
def thinker() -> Iterator[Served]:
    """Thinks, says something, and calls a function where there is one."""

    def think(prompt: str, index: int) -> list[Token]:
        answer = said(prompt, 0).partition("\n")[0]
        call = f"\n{CALL}" if "<tools>" in prompt and "<tool_response>" not in prompt else ""
        return [259, *b"\nHm.\n", 260, *f"\n\nSo: {answer}{call}".encode()]

    with scripted(think, template=QWEN3) as served:
        yield served


def events(served: Served, **body: Any) -> list[dict[str, Any]]:
    """A stream's events, checked: numbered, named, and of OpenAI's types."""
    found = served.events(PATH, **body)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    for one in found:
        TypeAdapter(ResponseStreamEvent).validate_python(one)
    return found


def alike(response: dict[str, Any]) -> Any:
    """A response without what is drawn for it: ids and times."""
    text = json.dumps({**response, "created_at": 0, "completed_at": 0})
    for item in [response, *response["output"]]:
        for name in ("id", "call_id"):
            if name in item:
                text = text.replace(item[name], name)
    return json.loads(text)


def test_a_whole_response_has_every_field(served: Served) -> None:
    body = {"metadata": {"a": "b"}, "instructions": "Be brief.", "max_output_tokens": 50, "user": "u"}
    answer = served.post(PATH, input="héllo", temperature=0.5, **body).json()
    Response.model_validate(answer, strict=True)
    TypeAdapter(ResponseObject).validate_python(answer)
    assert set(answer) == set(ResponseObject.__annotations__) - {"cache"}
    assert answer["id"].startswith("resp_") and answer["completed_at"] >= answer["created_at"] > 1_600_000_000
    [message] = answer["output"]
    assert message.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "héllo", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    usage = answer["usage"]
    assert usage["output_tokens"] == 7 and usage["output_tokens_details"] == {"reasoning_tokens": 0}
    details = usage["input_tokens_details"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]
    assert (answer["status"], answer["temperature"], answer["store"]) == ("completed", 0.5, True)
    assert (answer["metadata"], answer["user"], answer["instructions"]) == ({"a": "b"}, "u", "Be brief.")
    assert served.script.prompts[-1].startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhéllo"
    )


def test_cached_tokens_are_told(served: Served) -> None:
    text = "the same words " * 5
    first = served.post(PATH, input=text).json()["usage"]
    again = served.post(PATH, input=text).json()["usage"]
    assert again["input_tokens_details"]["cached_tokens"] == first["input_tokens"] - 1


def test_the_events_of_a_text(served: Served) -> None:
    found = events(served, input="a😊b")
    assert [one["type"] for one in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [one["delta"] for one in found[4:7]] == ["a", "😊", "b"]
    assert found[7]["text"] == "a😊b" == found[8]["part"]["text"]
    assert found[2]["item"]["content"] == [] and found[9]["item"] == found[10]["response"]["output"][0]
    assert found[0]["response"]["status"] == "in_progress"
    whole = served.post(PATH, input="a😊b").json()
    found[10]["response"]["usage"]["input_tokens_details"] = whole["usage"]["input_tokens_details"]
    assert alike(found[10]["response"]) == alike(whole)


def test_events_have_names(served: Served) -> None:
    with served.client.stream("POST", PATH, json={"input": "x", "stream": True}) as response:
        blocks = response.read().decode().split("\n\n")
    assert blocks[0].startswith(
        'event: response.created\ndata: {"type":"response.created","sequence_number":0,'
    )
    assert "[DONE]" not in blocks[-2]


@pytest.mark.parametrize("with_tools", [False, True])
def test_thinking_text_and_calls_are_items_whole_and_streamed(thinker: Served, with_tools: bool) -> None:
    body: dict[str, Any] = {"input": "Oslo?", "tools": [WEATHER] if with_tools else []}
    thinker.post(PATH, **body)  # so that both find the same in the cache
    whole = thinker.post(PATH, **body).json()
    Response.model_validate(whole, strict=True)
    found = events(thinker, **body)
    assert alike(found[-1]["response"]) == alike(whole)
    reasoning, message, *calls = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "So: Oslo?"
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 9
    assert len(calls) == with_tools
    for call in calls:
        assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Oslo"})
    deltas: dict[str, str] = {}
    for one in found:
        if one["type"].endswith(".delta"):
            deltas[one["item_id"]] = deltas.get(one["item_id"], "") + one["delta"]
    items = found[-1]["response"]["output"]
    texts = [one["content"][0]["text"] if "content" in one else one["arguments"] for one in items]
    assert [deltas[one["id"]] for one in items] == texts


def test_a_conversation_with_calls_is_written_as_one(thinker: Served) -> None:
    first = thinker.post(PATH, input="Oslo?", tools=[WEATHER]).json()
    call = first["output"][2]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    items = [{"role": "user", "content": "Oslo?"}, *first["output"], result]
    second = thinker.post(PATH, input=items, tools=[WEATHER], explain_cache=True)
    assert second.status_code == 200, second.text
    written = thinker.script.prompts[-1]
    assert written.count("<tool_response>\nrain\n</tool_response>") == 1
    assert written.count('{"name": "weather", "arguments": {"city": "Oslo"}}') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_p16_what_goes_on_from_a_response_finds_it_cached(thinker: Served, stream: bool) -> None:
    """All that was computed is kept, thinking too, however the template would write it now."""
    previous, known = None, 0
    for number in range(4):
        body = {"input": f"{number}?", "previous_response_id": previous, "cache_salt": f"go on {stream}"}
        body |= {"instructions": "Be brief."}
        answer = events(thinker, **body)[-1]["response"] if stream else thinker.post(PATH, **body).json()
        usage = answer["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] >= known - 1
        assert answer["previous_response_id"] == previous
        previous, known = answer["id"], usage["total_tokens"]
    written = thinker.script.prompts[-1]
    assert written.count("Hm.") == 3
    assert [f"So: {number}?" in written for number in range(4)] == [True, True, True, False]


def test_a_response_can_be_gone_on_with_twice_and_with_other_instructions(thinker: Served) -> None:
    first = thinker.post(PATH, input="one", instructions="Be brief.").json()
    for text in ("left", "right"):
        body = {"input": text, "previous_response_id": first["id"], "explain_cache": True}
        other = thinker.post(PATH, **body, instructions="Be brief.").json()
        assert other["cache"]["session"] == {"kept_tokens": first["usage"]["total_tokens"] - 1, "why": None}
        assert "left" not in thinker.script.prompts[-1] or text == "left"
    plain = thinker.post(PATH, **body, instructions="Be long.").json()
    assert plain["cache"]["session"]["why"] == "edited"
    assert "one" in thinker.script.prompts[-1] and "Be brief." not in thinker.script.prompts[-1]


def test_stored_responses_are_fetched_and_deleted_by_their_owner(served: Served) -> None:
    answer = served.post(PATH, input="keep me").json()
    path = f"{PATH}/{answer['id']}"
    assert served.client.get(path).json() == answer
    assert served.client.get(path, headers={"Authorization": "Bearer other"}).status_code == 404
    assert served.client.get(f"{path}?stream=true").status_code == 400
    assert served.client.delete(path).json() == {"id": answer["id"], "object": "response", "deleted": True}
    assert served.client.get(path).status_code == served.client.delete(path).status_code == 404
    streamed = events(served, input="keep me too")[-1]["response"]
    assert served.client.get(f"{PATH}/{streamed['id']}").json() == streamed


def test_what_is_not_stored_cannot_be_gone_on_with(served: Served) -> None:
    answer = served.post(PATH, input="forget me", store=False).json()
    assert answer["store"] is False
    response = served.post(PATH, input="x", previous_response_id=answer["id"])
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "previous_response_not_found" and answer["id"] in error["message"]


def test_a_response_that_is_cut_is_incomplete(served: Served) -> None:
    body = {"input": "a long answer", "max_output_tokens": 6}
    whole = served.post(PATH, **body).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (whole["output"][0]["status"], whole["completed_at"]) == ("incomplete", None)
    found = events(served, **body)
    assert found[-1]["type"] == "response.incomplete" and found[-1]["response"]["status"] == "incomplete"


def test_p18_an_empty_response_has_an_empty_message(served: Served) -> None:
    whole = served.post(PATH, input="").json()
    assert [part["text"] for part in whole["output"][0]["content"]] == [""]
    assert (whole["status"], whole["usage"]["output_tokens"]) == ("completed", 1)
    assert [one["type"] for one in events(served, input="")].count("response.output_item.done") == 1


def test_logprobs_are_those_of_the_text(served: Served) -> None:
    body = {"input": "a😊", "include": LOGPROBS, "top_logprobs": 2}
    [part] = served.post(PATH, **body).json()["output"][0]["content"]
    tokens = part["logprobs"]
    assert b"".join(bytes(one["bytes"]) for one in tokens).decode() == "a😊"
    assert all(len(one["top_logprobs"]) == 2 for one in tokens)
    found = events(served, **body)
    deltas = [one for one in found if one["type"] == "response.output_text.delta"]
    [done] = [one for one in found if one["type"] == "response.output_text.done"]
    assert done["logprobs"] == tokens
    assert [token for one in deltas for token in one["logprobs"]] == tokens


def test_an_error_inside_a_stream_is_an_event() -> None:
    with scripted("a long answer") as served:
        steps: list[Batch] = []

        def fail_later(batch: Batch) -> None:
            steps.append(batch)
            if len(steps) == 4:
                raise ExecutorError("the model broke")

        served.script.on_step = fail_later
        *_, error, failed = events(served, input="x")
        assert (error["type"], error["message"]) == ("error", "the model broke")
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"] == {"code": "server_error", "message": "the model broke"}
        assert len(served.context.responses) == 0
        assert served.post(PATH, input="x").status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input: Field required"),
        ({"input": 5}, "input: must be a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]: cannot be read"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "type 'input_image'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "mood": 1}]}, "input[0].mood"),
        ({"input": []}, "input is empty"),
        ({"input": "x", "background": True}, "nothing is answered in the background"),
        ({"input": "x", "truncation": "auto"}, "never cut"),
        ({"input": "x", "conversation": "c"}, "previous_response_id"),
        ({"input": "x", "include": ["reasoning.encrypted_content"]}, "reasoning.encrypted_content"),
        ({"input": "x", "top_logprobs": 2}, "top_logprobs needs logprobs"),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            "not there yet",
        ),
        ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"input": "x", "reasoning": {"summary": "detailed"}}, "without a summary"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type is not supported"),
        ({"input": "x", "tools": [WEATHER]}, "no tool support"),
        ({"input": "x", "n": 2}, "unknown field 'n'"),
        ({"input": "x", "previous_response_id": "resp_none"}, "no response 'resp_none' is stored here"),
        ({"input": "x", "stream_options": {}}, "stream_options is for streams"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, body: dict[str, Any], words: str) -> None:
    response = served.post(PATH, **body)
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is out of range; got 0"),
        ({"max_output_tokens": 9999}, "input", "Set max_output_tokens to at most"),
        ({"input": "x" * 5000}, "input", "the prompt leaves no room"),
        ({"include": LOGPROBS, "top_logprobs": 21}, "top_logprobs", "top_logprobs is out of range; got 21"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format", "text.format: structured output"),
        ({"input": []}, "input", "input is empty"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "does not read it"),
        ({"tools": [WEATHER]}, "tools", "no tool support"),
    ],
)
def test_errors_of_the_engine_name_fields_of_the_body(
    served: Served, body: dict[str, Any], param: str, words: str
) -> None:
    error = served.post(PATH, **{"input": "x", **body}).json()["error"]
    assert error["param"] == param and words in error["message"]


def test_neutral_fields_are_accepted(served: Served) -> None:
    body: dict[str, Any] = {
        "truncation": "disabled",
        "background": False,
        "include": [],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": "none", "summary": "auto"},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "service_tier": "auto",
        **dict.fromkeys(("conversation", "prompt", "max_tool_calls", "store", "metadata", "stream")),
    }
    response = served.post(PATH, input="x", **body)
    assert response.status_code == 200, response.text
