"""Tools and reasoning through the routes, as the openai client sees them. The model is a tiny one whose
tokens are read as a transcript."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from openai import OpenAI

from leafage.server.app import create_app
from tests.server.conftest import context_over, serving, tiny_build
from tests.server.tools.formats import CHATML, WEATHER, source

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from leafage.build import Assets

STOP = "<END>"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ANSWER = f"<think>\nI should look.\n</think>\n\nLet me look.\n{CALL}\n{CALL.replace('Paris', 'Rome')}"
NAMED = {"served_model_name": ("tiny",)}
USER = {"role": "user", "content": "What is the weather?"}


@dataclass
class Transcript:
    """The tokenizer of a model that answers with `text`, three characters a token, whatever was drawn."""

    tokenizer: Any
    chat_template: str
    text: str = ""
    num_pushed: int = field(default=0, init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Transcript:
        return replace(self)

    def push(self, token_id: int) -> str:
        self.num_pushed += 1
        return f"{self.text}{STOP}"[3 * self.num_pushed - 3 : 3 * self.num_pushed]

    def flush(self) -> str:
        return ""

    def copy(self) -> Transcript:
        found = replace(self)
        found.num_pushed = self.num_pushed
        return found


@pytest.fixture(scope="module")
def qwen(tiny_assets: Assets) -> Iterator[tuple[Transcript, str]]:
    """What the model will say, and the URL of a server with Qwen 3's template."""
    transcript = Transcript(tiny_assets.tokenizer, source("qwen3"))
    assets = replace(tiny_assets, tokenizer=transcript)  # type: ignore[arg-type]
    with context_over(tiny_build(assets), **NAMED) as context, serving(create_app(context)) as url:
        yield transcript, url


@pytest.fixture(scope="module")
def plain_url(tiny_assets: Assets) -> Iterator[str]:
    """A server whose template takes no tools."""
    assets = replace(tiny_assets, tokenizer=Transcript(tiny_assets.tokenizer, CHATML))  # type: ignore[arg-type]
    with context_over(tiny_build(assets), **NAMED) as context, serving(create_app(context)) as url:
        yield url


def request(**settings: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [USER], "tools": [WEATHER], "stop": STOP, "seed": 1}
    return {**body, "extra_body": {"ignore_eos": True}, "max_tokens": 400, **settings}


def ask(url: str, **settings: Any) -> ChatCompletion:
    return OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(**request(**settings))


def refusal(url: str, **settings: Any) -> str:
    body = request(**settings)
    body.pop("extra_body")
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    message: str = response.json()["error"]["message"]
    return message


def streamed(url: str, **settings: Any) -> dict[int, dict[str, Any]]:
    """The choices that a client puts together from a stream."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    choices: dict[int, dict[str, Any]] = {}
    for chunk in client.chat.completions.create(**request(**settings), stream=True):
        for choice in chunk.choices:
            found = choices.setdefault(
                choice.index, {"content": None, "reasoning_content": None, "calls": []}
            )
            delta = choice.delta
            reasoning = getattr(delta, "reasoning_content", None)
            assert len([part for part in (delta.content, reasoning, delta.tool_calls) if part]) <= 1
            for name, text in (("content", delta.content), ("reasoning_content", reasoning)):
                if text:
                    found[name] = (found[name] or "") + text
            for call in delta.tool_calls or ():
                if call.id is not None:
                    assert call.type == "function" and call.index == len(found["calls"])
                    found["calls"].append([call.id, call.function.name, ""])
                found["calls"][call.index][2] += call.function.arguments
            assert "finish_reason" not in found or choice.finish_reason is None
            if choice.finish_reason is not None:
                found["finish_reason"] = choice.finish_reason
    return choices


def whole(answer: ChatCompletion) -> dict[int, dict[str, Any]]:
    return {
        choice.index: {
            "content": choice.message.content or None,
            "reasoning_content": getattr(choice.message, "reasoning_content", None),
            "calls": [
                [call.id, call.function.name, call.function.arguments]
                for call in choice.message.tool_calls or ()
            ],
            "finish_reason": choice.finish_reason,
        }
        for choice in answer.choices
    }


def without_ids(choices: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        index: {**choice, "calls": [call[1:] for call in choice["calls"]]}
        for index, choice in choices.items()
    }


def test_g14_a_stream_is_the_whole_message(qwen: tuple[Transcript, str]) -> None:
    transcript, url = qwen
    transcript.text = ANSWER
    answer = whole(ask(url, n=2))
    assert without_ids(answer)[1] == {
        "content": "Let me look.",
        "reasoning_content": "I should look.",
        "calls": [["get_weather", '{"city": "Paris"}'], ["get_weather", '{"city": "Rome"}']],
        "finish_reason": "tool_calls",
    }
    assert without_ids(streamed(url, n=2)) == without_ids(answer)
    ids = [call[0] for choice in answer.values() for call in choice["calls"]]
    assert len(set(ids)) == 4 and all(one.startswith("call_") for one in ids)


def test_the_result_goes_into_the_next_turn(qwen: tuple[Transcript, str]) -> None:
    transcript, url = qwen
    transcript.text = CALL
    message = ask(url).choices[0].message
    assert message.content is None and message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    transcript.text = "<think>\n\n</think>\n\nIt rains."
    turn = message.model_dump(exclude_unset=True)
    first = ask(url).usage.prompt_tokens
    answer = ask(url, messages=[USER, {k: v for k, v in turn.items() if k != "refusal"}, result])
    assert answer.choices[0].message.content == "It rains." and answer.choices[0].finish_reason == "stop"
    added = f"<tool_call>{CALL}<im_end|>user\n<tool_response>\nrain\n</tool_response>"
    assert answer.usage.prompt_tokens > first + len(added) - 20


def test_an_answer_that_is_cut_off(qwen: tuple[Transcript, str]) -> None:
    """What was not sent as a call is content; the reason stays the engine's."""
    transcript, url = qwen
    transcript.text = f"{CALL}{CALL}"
    settings = {"max_tokens": len(CALL) // 3 + 8}
    answer = without_ids(whole(ask(url, **settings)))
    assert answer == without_ids(streamed(url, **settings))
    assert answer[0]["finish_reason"] == "length" and len(answer[0]["calls"]) == 1
    assert answer[0]["content"].startswith("<tool_call>")


def test_logprobs_and_token_ids_come_for_every_token(qwen: tuple[Transcript, str]) -> None:
    transcript, url = qwen
    transcript.text = ANSWER
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    extra = {"ignore_eos": True, "return_token_ids": True}
    stream = client.chat.completions.create(**request(logprobs=True, extra_body=extra), stream=True)
    num_logprobs, ids = 0, []
    for chunk in stream:
        for choice in chunk.choices:
            num_logprobs += len(choice.logprobs.content) if choice.logprobs else 0
            ids += choice.model_dump().get("token_ids") or []
    answer = ask(url, logprobs=True, extra_body=extra).choices[0].model_dump()
    assert num_logprobs == len(answer["logprobs"]["content"]) == len(answer["token_ids"])
    assert ids == answer["token_ids"]


def test_parallel_tool_calls_off_keeps_the_first(qwen: tuple[Transcript, str]) -> None:
    transcript, url = qwen
    transcript.text = ANSWER
    answer = without_ids(whole(ask(url, parallel_tool_calls=False)))
    assert answer[0]["calls"] == [["get_weather", '{"city": "Paris"}']]
    assert without_ids(streamed(url, parallel_tool_calls=False)) == answer


def test_tool_choice_none_leaves_the_tools_out(qwen: tuple[Transcript, str]) -> None:
    transcript, url = qwen
    transcript.text = CALL
    answer = ask(url, tool_choice="none")
    assert answer.choices[0].message.content == CALL and answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == ask(url, tools=[]).usage.prompt_tokens


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"tool_choice": "required"},
            "cannot be forced yet; got 'required'; limit: none or auto. Use 'auto'",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "cannot be forced yet"),
        ({"tools": [{"type": "function"}]}, "tools[0] must be a function"),
    ],
)
def test_what_cannot_be_promised_is_refused(
    qwen: tuple[Transcript, str], settings: dict[str, Any], words: str
) -> None:
    assert words in refusal(qwen[1], **settings)


def test_a_template_without_tools_is_told(plain_url: str) -> None:
    assert "the model's chat template has no tool support" in refusal(plain_url)
    function = {"name": "get_weather", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    words = "does not write calls and their results. Start the server with --tool-template hermes"
    assert words in refusal(plain_url, tools=None, messages=[USER, call, result])


def test_the_hermes_tool_template(tiny_assets: Assets) -> None:
    transcript = Transcript(tiny_assets.tokenizer, CHATML, CALL)
    assets = replace(tiny_assets, tokenizer=transcript)  # type: ignore[arg-type]
    build = tiny_build(assets)
    with context_over(build, tool_template="hermes", **NAMED) as context, serving(create_app(context)) as url:
        answer = without_ids(whole(ask(url)))
    assert answer[0]["calls"] == [["get_weather", '{"city": "Paris"}']]


def test_deep_nesting_is_the_clients_error(qwen: tuple[Transcript, str]) -> None:
    for depth in (500, 900, 100_000):
        arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
        function = {"name": "f", "arguments": arguments}
        call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        response = httpx.post(
            f"{qwen[1]}/v1/chat/completions",
            json={"messages": [USER, call], "max_tokens": 1},
            timeout=60,
        )
        assert response.status_code in (200, 400), response.text
