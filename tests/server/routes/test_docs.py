"""The page at /docs: it is all there, fetches from nobody else, and its examples work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from leafage.server.protocol.chat import ChatCompletionRequest
from leafage.server.protocol.completions import CompletionRequest
from tests.server.scripted import Served, scripted


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(live=False) as served:
        yield served


def test_the_page_and_its_files_come_from_this_server_alone(served: Served) -> None:
    page = served.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    names = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert {"docs/static/docs.js", "docs/static/docs.css", "openapi.json"} <= set(names)
    for name in ("docs", *names):
        response = served.client.get(f"/{name}")
        assert response.status_code == 200, name
        if name != "openapi.json":
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", response.text), name
    assert served.client.get("/docs/static/..%2f__init__.py").status_code == 404


def test_examples_are_accepted(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    examples: dict[str, Any] = {
        path: operations["post"]["requestBody"]["content"]["application/json"]["example"]
        for path, operations in document["paths"].items()
        if "post" in operations
    }
    assert "/v1/responses" in examples
    for path, body in examples.items():
        assert served.post(path, **body).status_code == 200, path


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_every_field_of_a_request_says_what_it_does(model: Any) -> None:
    fields = model.model_json_schema()["properties"]
    objects = {"messages", "stream_options", "response_format"}  # whose own fields do
    assert [name for name in fields if not fields[name].get("description") and name not in objects] == []


def test_with_keys_the_page_is_open_and_what_it_sends_is_not() -> None:
    with scripted(api_key=("secret",)) as served:
        for path in ("/docs", "/docs/static/docs.js", "/openapi.json"):
            assert served.client.get(path).status_code == 200
        assert served.client.get("/v1/models").status_code == 401


def test_it_can_be_left_out() -> None:
    with scripted(docs=False) as served:
        answers: list[httpx.Response] = [
            served.client.get(path) for path in ("/docs", "/docs/static/docs.js", "/openapi.json")
        ]
        assert [one.status_code for one in answers] == [404] * 3
