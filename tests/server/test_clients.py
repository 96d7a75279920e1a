"""The clients that people use, unchanged, against a real socket: openai, sync and async, and curl.

LangChain's is in `soak/test_langchain.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from leafage.core.batch import Batch
from leafage.errors import ExecutorError
from tests.server.scripted import Served, scripted

MESSAGES: Any = [{"role": "user", "content": "삼겹살 😊"}]
ANSWER = "👨‍👩‍👧‍👦 한국어 ok"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(lambda prompt, index: ANSWER + "!" * index, api_key=("secret",)) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret") as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "leafage"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, user="me", seed=1
    )
    assert [choice.message.content for choice in answer.choices] == [ANSWER, ANSWER + "!"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert bytes(b for token in logprobs.content for b in token.bytes or []).decode() == ANSWER
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens == 2 * len(ANSWER.encode()) + 3
    assert answer.system_fingerprint == "fp_scripted"


def test_an_answer_is_sent_back_as_the_documentation_does(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES)
    messages = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "more"}]
    assert client.chat.completions.create(model="scripted", messages=messages).choices[0].message.content


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
    )
    texts, last = ["", ""], None
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        last = chunk
    assert texts == [ANSWER, ANSWER + "!"]
    assert last is not None and last.usage is not None and last.usage.completion_tokens > 0


def test_chat_with_the_streaming_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=MESSAGES, logprobs=True) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="scripted", prompt=["a", "b"], logprobs=1, echo=True, max_tokens=99
    )
    assert [choice.text for choice in answer.choices] == [f"a{ANSWER}", f"b{ANSWER}"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.text_offset is not None and logprobs.text_offset[:3] == [0, 1, 1]
    stream = client.completions.create(model="scripted", prompt="a", stream=True, max_tokens=99)
    assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER


def test_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="scripted", input="hi", instructions="Be brief.")
    assert first.output_text == ANSWER and first.status == "completed"
    items: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    assert client.responses.create(model="scripted", input=items).output_text == ANSWER
    second = client.responses.create(model="scripted", input="more", previous_response_id=first.id)
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= 5
    assert client.responses.retrieve(first.id).output_text == ANSWER
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_streamed(client: openai.OpenAI) -> None:
    stream = client.responses.create(model="scripted", input="hi", stream=True)
    events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    with client.responses.stream(model="scripted", input="hi") as helper:
        for _ in helper:
            pass
        assert helper.get_final_response().output_text == ANSWER


def test_the_async_client_runs_many_at_once(served: Served) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="secret") as client:

            async def one(number: int) -> str:
                if number % 2:
                    answer = await client.chat.completions.create(model="scripted", messages=MESSAGES)
                    return answer.choices[0].message.content or ""
                stream = await client.chat.completions.create(
                    model="scripted", messages=MESSAGES, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(32)))

    assert asyncio.run(ask()) == [ANSWER] * 32


def test_errors_are_the_clients_exceptions(client: openai.OpenAI, served: Served) -> None:
    ask = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as refused:
        ask(model="scripted", messages=MESSAGES, extra_body={"no_such_field": 1})
    assert refused.value.param == "no_such_field"
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="scripted", prompt="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="embeddings"):
        client.embeddings.create(model="scripted", input="x")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    served.script.fail = ExecutorError("the model broke")
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=0).completions.create(model="scripted", prompt="x")


def test_an_error_inside_a_stream_is_raised(client: openai.OpenAI, served: Served) -> None:
    steps: list[Batch] = []

    def fail_later(batch: Batch) -> None:
        steps.append(batch)
        if len(steps) == 5:
            raise ExecutorError("the model broke")

    served.script.on_step = fail_later
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the model broke"):
        list(stream)
    steps.clear()
    events = [event.type for event in client.responses.create(model="scripted", input="x", stream=True)]
    assert events[-2:] == ["error", "response.failed"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("stream", [False, True])
def test_curl(served: Served, stream: bool) -> None:
    body = json.dumps({"messages": MESSAGES, "stream": stream}, ensure_ascii=False)
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--fail", "--max-time", "30"]
    command += ["-H", "Content-Type: application/json", "-H", "Authorization: Bearer secret", "-d", body]
    done = subprocess.run(
        [*command, f"{served.url}/v1/chat/completions"], capture_output=True, text=True, check=True
    )
    if not stream:
        assert json.loads(done.stdout)["choices"][0]["message"]["content"] == ANSWER
        assert "한국어" in done.stdout  # people read it
        return
    *lines, last = done.stdout.strip().split("\n\n")
    assert last == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ANSWER
