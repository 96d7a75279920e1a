"""Endpoints that are not here say so by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leafage.server.routes.refused import REFUSED
from tests.server.scripted import Served, scripted


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted() as served:
        yield served


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_not_there_is_404_with_a_remedy(served: Served, path: str) -> None:
    path = path.replace("{rest:path}", "a/b")
    response = served.client.post(path, content=b"whatever")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["message"].startswith(f"{path} is not there: Leafage has no ")
    assert (error["type"], error["code"]) == ("not_found_error", "unsupported_endpoint")


def test_any_other_path_is_404_too(served: Served) -> None:
    error = served.client.get("/v1/nothing").json()["error"]
    assert error["message"] == "there is nothing at /v1/nothing. See /docs for what is"
