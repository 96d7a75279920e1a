"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.scripted import END, Served, scripted

USER = [{"role": "user", "content": "hi<|im_end|>"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted() as served:
        yield served


def test_a_text_there_and_back(served: Served) -> None:
    answer = served.post("/tokenize", prompt="<|im_start|>é", return_token_strs=True).json()
    assert answer == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [257, *"é".encode()],
        "token_strs": ["<|im_start|>", "\ufffd", "\ufffd"],
    }
    back = served.post("/detokenize", tokens=answer["tokens"]).json()
    assert back == {"prompt": "<|im_start|>é"}


def test_t01_a_conversation_is_what_the_chat_endpoint_computes(served: Served) -> None:
    answer = served.post("/tokenize", messages=USER).json()
    assert answer["tokens"].count(END) == 1 and answer["token_strs"] is None
    usage = served.post("/v1/chat/completions", messages=USER).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]
    without = served.post("/tokenize", messages=USER, add_generation_prompt=False).json()
    assert answer["tokens"][: without["count"]] == without["tokens"]
    going_on = {"add_generation_prompt": False, "continue_final_message": True}
    assert served.post("/tokenize", messages=USER, **going_on).json()["tokens"][-1] == ord(">")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": "x", "messages": USER}, "either prompt or messages"),
        (
            "/tokenize",
            {"prompt": "x", "add_generation_prompt": True},
            "add_generation_prompt is for messages",
        ),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, "add_special_tokens is for prompt"),
        ("/tokenize", {"messages": USER, "chat_template": "x"}, "the server's chat template is used"),
        ("/detokenize", {"tokens": [1, 999]}, "no such token id; got 999; limit: 0 to 260"),
        ("/detokenize", {"tokens": [-1]}, "got -1"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_what_is_wrong_is_said_by_name(served: Served, path: str, body: dict[str, Any], words: str) -> None:
    response = served.post(path, **body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
