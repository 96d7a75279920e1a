"""`explain_cache`: where the cached prefix of a prompt ended, and why (P1, P16)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.scripted import Served, scripted

PATH = "/v1/completions"


def ask(served: Served, prompt: str, *, stream: bool = False, **body: Any) -> dict[str, Any]:
    """The report."""
    body = {"prompt": prompt, "max_tokens": 2, "explain_cache": True, **body}
    if not stream:
        [report] = served.post(PATH, **body).json()["cache"]
        return report
    chunks = served.events(PATH, **body)[:-1]
    assert ["cache" in chunk for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    return chunks[0]["cache"]


@pytest.mark.parametrize("stream", [False, True])
def test_p01_the_first_divergent_token_and_both_texts(stream: bool) -> None:
    with scripted("xyz") as served:
        start = "shared beginning of two prompts, "
        assert ask(served, start + "one")["cached_tokens"] == 0
        report = ask(served, start + "two", stream=stream)
        assert report == {
            "prompt_tokens": len(start) + 3,
            "cached_tokens": len(start),
            "miss": {
                "reason": "no_match",
                "position": len(start),
                "token_id": ord("t"),
                "token": "t",
                "cached_token_id": ord("o"),
                "cached_token": "o",
            },
        }
        assert ask(served, start + "two", stream=stream)["miss"] is None


def test_p01_evicted_is_told_from_never_there() -> None:
    with scripted("xyz", num_blocks=16) as served:
        ask(served, "a" * 100)
        for letter in "bcd":
            ask(served, letter * 200)
        miss = ask(served, "a" * 100)["miss"]
        assert (miss["reason"], miss["cached_token"]) == ("evicted", None)


def test_another_salt_shares_nothing_and_is_told_nothing() -> None:
    """Also where a chat and its session are concerned."""
    with scripted("xyz") as served:
        ask(served, "the same prompt", cache_salt="a")
        report = ask(served, "the same prompt", cache_salt="b")
        assert report["cached_tokens"] == 0
        assert report["miss"]["reason"] == "no_match" and report["miss"]["cached_token"] is None
        assert ask(served, "the same prompt", cache_salt="a")["cached_tokens"] == 14


def test_a_part_of_a_character_is_shown_as_such() -> None:
    with scripted("xyz") as served:
        ask(served, "price: 5 € now")
        miss = ask(served, "price: 5 ₿ now")["miss"]
        assert miss["token"] == miss["cached_token"] == "\ufffd"
        assert miss["token_id"] != miss["cached_token_id"]


def test_every_prompt_of_a_request_has_its_report() -> None:
    with scripted("xyz") as served:
        body = {"prompt": ["first one", "second"], "n": 2, "max_tokens": 1, "explain_cache": True}
        reports = served.post(PATH, **body).json()["cache"]
        assert [report["prompt_tokens"] for report in reports] == [9, 6]
        chunks = [chunk for chunk in served.events(PATH, **body)[:-1] if "cache" in chunk]
        assert sorted(chunk["cache"]["prompt_tokens"] for chunk in chunks) == [6, 9]
        assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 2}
