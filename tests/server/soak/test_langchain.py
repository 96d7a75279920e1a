"""LangChain's OpenAI client, unchanged. Not in CI: it brings sixteen packages along."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.scripted import Served, Token, scripted

pytestmark = pytest.mark.soak

GOLDEN = Path(__file__).parents[2] / "text" / "golden" / "templates.json.gz"
QWEN3 = json.loads(gzip.decompress(GOLDEN.read_bytes()))["Qwen-Qwen3-0.6B"]["source"]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def answer(prompt: str, index: int) -> list[Token]:
    """Thinks; calls a function where there is one and nothing came back yet; says the question back."""
    question = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    calls = "<tools>" in prompt and "<tool_response>" not in prompt
    text = CALL if calls else f"So: {question}"
    return [259, *b"\nHm.\n", 260, *f"\n\n{text}".encode()]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(answer, template=QWEN3) as served:
        yield served


@pytest.fixture(scope="module")
def langchain() -> Any:
    """The package, which is imported only where it is tested."""
    try:
        import langchain_openai
    except ImportError:
        pytest.fail("langchain-openai is not installed: pip install '.[soak]'")
    return langchain_openai


@pytest.fixture(scope="module")
def model(served: Served, langchain: Any) -> Any:
    return langchain.ChatOpenAI(model="scripted", base_url=f"{served.url}/v1", api_key="none")


def test_invoke(model: Any) -> None:
    found = model.invoke([("system", "Be brief."), ("human", "삼겹살?")])
    assert found.content == "So: 삼겹살?"
    assert found.response_metadata["finish_reason"] == "stop"
    assert found.usage_metadata["output_token_details"]["reasoning"] > 0
    assert found.usage_metadata["input_token_details"]["cache_read"] >= 0


def test_a_conversation_goes_on(model: Any) -> None:
    first = model.invoke("one?")
    second = model.invoke([("human", "one?"), first, ("human", "two?")])
    assert second.content == "So: two?"


def test_stream(model: Any) -> None:
    pieces = list(model.stream("😊?", stream_usage=True))
    assert "".join(piece.content for piece in pieces) == "So: 😊?"
    assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) > 0


def test_batch(model: Any) -> None:
    found = model.batch([f"{number}?" for number in range(16)])
    assert [one.content for one in found] == [f"So: {number}?" for number in range(16)]


def test_tools(model: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    bound = model.bind_tools([weather])
    question = HumanMessage("How is Oslo?")
    first = bound.invoke([question])
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert bound.invoke([question, first, result]).content.startswith("So: ")
    streamed = None
    for piece in bound.stream([question]):
        streamed = piece if streamed is None else streamed + piece
    assert streamed is not None and streamed.tool_calls[0]["args"] == {"city": "Oslo"}


def test_responses(served: Served, langchain: Any) -> None:
    settings = {"model": "scripted", "base_url": f"{served.url}/v1", "api_key": "none"}
    other = langchain.ChatOpenAI(**settings, use_responses_api=True)
    found = other.invoke("one?")
    assert found.text == "So: one?"
    assert "".join(piece.text for piece in other.stream("two?")) == "So: two?"
    again = other.invoke([("human", "one?"), found, ("human", "three?")])
    assert again.text == "So: three?"


def test_errors(model: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="no_such"):
        model.bind(extra_body={"no_such": 1}).invoke("x")


def test_completions(served: Served, langchain: Any) -> None:
    other = langchain.OpenAI(model="scripted", base_url=f"{served.url}/v1", api_key="none")
    assert "So: " in other.invoke("hello")
