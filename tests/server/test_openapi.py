"""The OpenAPI document: it says what is taken and answered, and both are true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from leafage.server.protocol.chat import ChatCompletion, ChatCompletionChunk, Choice
from leafage.server.protocol.completions import Completion, CompletionChoice
from tests.server.scripted import Served, scripted

MESSAGES = [{"role": "user", "content": "hi"}]
EVERYTHING = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "explain_cache": True, "n": 2}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted() as served:
        yield served


@pytest.fixture(scope="module")
def document(served: Served) -> Any:
    return served.client.get("/openapi.json").json()


def test_every_operation_says_what_it_takes_and_answers(document: Any) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["description"], where
            if path.startswith("/v1") or "token" in path:
                answer = operation["responses"]["200"]["content"]["application/json"]
                assert "$ref" in answer["schema"], where
            if method == "post":
                assert "$ref" in operation["requestBody"]["content"]["application/json"]["schema"], where
                assert "400" in operation["responses"], where


def test_every_reference_is_there(document: Any) -> None:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for one in value.values():
                yield from walk(one)
        elif isinstance(value, list):
            for one in value:
                yield from walk(one)

    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found = set(walk(document))
    assert len(found) > 20 and found <= names


def test_chat_answers_are_what_the_document_says(served: Served) -> None:
    body = {"messages": MESSAGES, **EVERYTHING, "prompt_logprobs": 1}
    answer = served.post("/v1/chat/completions", **body).json()
    TypeAdapter(ChatCompletion).validate_python(answer)
    assert set(answer) <= set(ChatCompletion.__annotations__)
    assert set(answer["choices"][0]) == set(Choice.__annotations__)
    options = {"include_usage": True}
    chunks = served.events("/v1/chat/completions", **body, stream_options=options)[:-1]
    TypeAdapter(list[ChatCompletionChunk]).validate_python(chunks)


def test_completions_are_what_the_document_says(served: Served) -> None:
    body = {
        "prompt": ["a", "b"],
        "logprobs": 2,
        "echo": True,
        "return_token_ids": True,
        "explain_cache": True,
    }
    answer = served.post("/v1/completions", **body).json()
    TypeAdapter(Completion).validate_python(answer)
    assert set(answer) == set(Completion.__annotations__)
    assert set(answer["choices"][0]) < set(CompletionChoice.__annotations__)
    chunks = served.events("/v1/completions", **body)[:-1]
    TypeAdapter(list[Completion]).validate_python(chunks)
