"""session_id: a conversation's ids are kept, so its next turn finds the last one in the cache (P16)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import ExecutorError
from tests.server.scripted import Served, Token, scripted

PATH = "/v1/chat/completions"
GOLDEN = Path(__file__).parents[2] / "text" / "golden" / "templates.json.gz"
TEMPLATES = {
    name: stored["source"] for name, stored in json.loads(gzip.decompress(GOLDEN.read_bytes())).items()
}
QWEN3 = TEMPLATES["Qwen-Qwen3-0.6B"]
THINK, NO_THINK = 259, 260
REASONING = "I should think about it. "


def thinking(prompt: str, index: int) -> list[Token]:
    """An answer as Qwen 3 gives it: `<think>` and its end are one token each."""
    question = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    return [THINK, *f"\n{REASONING}\n".encode(), NO_THINK, *f"\n\nAnswer to {question}.".encode()]


@pytest.fixture(scope="module")
def qwen3() -> Iterator[Served]:
    with scripted(thinking, template=QWEN3) as served:
        yield served


class Talk:
    """A client that sends its conversation anew for every turn."""

    def __init__(self, served: Served, **body: Any) -> None:
        self.served = served
        self.body = body
        self.messages: list[dict[str, Any]] = []

    def say(self, text: str, **body: Any) -> dict[str, Any]:
        """The answer to one more message."""
        self.messages.append({"role": "user", "content": text})
        body = {**self.body, **body, "explain_cache": True, "return_token_ids": True}
        response = self.served.post(PATH, messages=self.messages, **body)
        assert response.status_code == 200, response.text
        answer = response.json()
        message = answer["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        return answer


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_p16_without_a_session_a_thinking_template_loses_the_last_turn(qwen3: Served) -> None:
    """And explain_cache says where: the template writes no thinking where the model had thought."""
    talk = Talk(qwen3, cache_salt="plain")
    first = talk.say("What is it?")
    second = talk.say("And then?")
    assert cached(second) < first["usage"]["total_tokens"] - len(REASONING)
    miss = second["cache"]["miss"]
    assert (miss["reason"], miss["position"]) == ("no_match", first["usage"]["prompt_tokens"])
    assert (miss["cached_token_id"], miss["cached_token"]) == (THINK, "<think>")
    assert (miss["token"], miss["token_id"]) == ("A", ord("A"))


@pytest.mark.parametrize("stream", [False, True])
def test_p16_a_session_keeps_the_thinking_and_the_cache(qwen3: Served, stream: bool) -> None:
    talk = Talk(qwen3, session_id=f"s{stream}", cache_salt=f"kept{stream}")
    before: dict[str, Any] = {}
    for number, question in enumerate(["one", "two", "three", "four", "five"]):
        if stream:
            talk.messages.append({"role": "user", "content": question})
            options = {"include_usage": True}
            body = {**talk.body, "explain_cache": True, "return_token_ids": True, "stream_options": options}
            *chunks, last, _ = qwen3.events(PATH, messages=talk.messages, **body)
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            content = "".join(delta.get("content", "") for delta in deltas)
            talk.messages.append({"role": "assistant", "content": content})
            ids = [one for chunk in chunks for one in chunk["choices"][0].get("token_ids", [])]
            answer = {**chunks[0], "usage": last["usage"]}
        else:
            answer = talk.say(question)
            ids = answer["choices"][0]["token_ids"]
        assert talk.messages[-1]["content"] == f"Answer to {question}."
        prompt = answer["prompt_token_ids"]
        if number:
            known = [*before["prompt"], *before["ids"]]
            assert prompt[: len(known)] == known  # the end-of-turn id included, which the template wrote
            assert cached(answer) >= len(known) - 1
            assert answer["cache"]["session"] == {"kept_tokens": len(known) - 1, "why": None}
        else:
            assert answer["cache"]["session"] == {"kept_tokens": 0, "why": "new"}
        before = {"prompt": prompt, "ids": ids}
    assert qwen3.script.prompts[-1].count(REASONING) == 4


@pytest.mark.parametrize("name", [*TEMPLATES, "chatml"])
def test_p16_a_session_changes_no_prompt_that_the_template_would_have_repeated(name: str) -> None:
    """With answers that need no thinking, the kept ids and the rendered ones are the same."""
    template = {"template": TEMPLATES[name]} if name in TEMPLATES else {}
    with scripted(lambda prompt, index: "Well: <|im_end|> 삼겹살 😊", **template) as served:
        plain, kept = Talk(served, cache_salt="p"), Talk(served, cache_salt="k", session_id="x")
        variables = {"enable_thinking": False} if "enable_thinking" in template.get("template", "") else {}
        for text in ("hi", "<|im_start|>go on", "more"):
            body = {"chat_template_kwargs": variables}
            old, new = plain.say(text, **body), kept.say(text, **body)
            if not variables:  # with it, Qwen 3 and SmolLM 3 write an empty thought, and drop it later
                assert new["prompt_token_ids"] == old["prompt_token_ids"]
        assert new["cache"]["session"]["kept_tokens"] > 0
        assert cached(new) >= new["cache"]["session"]["kept_tokens"]


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 9},
        {"stop": ["nswer"]},
        {"stop": ["to t"], "include_stop_str_in_output": True},
        {"stop_token_ids": [ord("w")]},
    ],
)
def test_p16_however_an_answer_ended_the_next_turn_goes_on(qwen3: Served, body: dict[str, Any]) -> None:
    talk = Talk(qwen3, session_id=str(body), cache_salt=str(body))
    first = talk.say("two", **body)
    second = talk.say("more")
    kept = second["cache"]["session"]["kept_tokens"]
    assert kept > first["usage"]["prompt_tokens"] and cached(second) >= kept - 1
    written = qwen3.script.prompts[-1]
    end = talk.messages[1]["content"] or REASONING[:7]
    assert f"{end}<|im_end|>\n<|im_start|>user\nmore<|im_end|>" in written.replace("<think>\n", "")


def test_an_edited_conversation_is_rendered_plainly(qwen3: Served) -> None:
    talk = Talk(qwen3, session_id="edited")
    talk.say("one")
    talk.say("two")
    talk.messages[1]["content"] = "Something else."
    third = talk.say("three")
    assert third["cache"]["session"] == {"kept_tokens": 0, "why": "edited"}
    assert "Something else." in qwen3.script.prompts[-1]
    fourth = talk.say("four")
    assert fourth["cache"]["session"]["why"] is None  # it goes on from there


def test_an_answer_can_be_asked_for_again(qwen3: Served) -> None:
    """The last user message is sent again, or another one instead: the turns before it are kept."""
    talk = Talk(qwen3, session_id="again")
    first = talk.say("one")
    talk.say("two")
    del talk.messages[2:]
    other = talk.say("two, but otherwise")
    kept = other["cache"]["session"]["kept_tokens"]
    assert kept == first["usage"]["total_tokens"] - 1
    assert qwen3.script.prompts[-1].count(REASONING) == 1


def test_other_tools_or_variables_begin_anew(qwen3: Served) -> None:
    talk = Talk(qwen3, session_id="form")
    talk.say("one")
    answer = talk.say("two", chat_template_kwargs={"enable_thinking": True})
    assert answer["cache"]["session"]["why"] == "edited"


def test_sessions_belong_to_who_began_them(qwen3: Served) -> None:
    """The same id under another API key, user or salt is another session."""
    messages = [{"role": "user", "content": "mine"}]
    body: dict[str, Any] = {"session_id": "shared", "explain_cache": True}

    def ask(headers: dict[str, str], **extra: Any) -> str | None:
        response = qwen3.client.post(PATH, json={**body, "messages": messages, **extra}, headers=headers)
        return response.json()["cache"]["session"]["why"]

    ann = {"Authorization": "Bearer ann"}
    assert ask(ann) == "new"
    content = "Answer to mine."
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "more"}]
    assert ask({"Authorization": "Bearer bob"}) == "new"
    assert ask(ann, user="u") == "new"
    assert ask(ann, cache_salt="s") == "new"
    assert ask(ann) is None


def test_a_template_that_moves_answers_is_rendered_plainly() -> None:
    twice = "{% for m in messages %}{{ m.content }}|{{ m.content }}\n{% endfor %}"
    with scripted(template=twice) as served:
        talk = Talk(served, session_id="x")
        talk.say("one")
        answer = talk.say("two")
        assert answer["cache"]["session"] == {"kept_tokens": 0, "why": "unknown_place"}
        assert served.script.prompts[-1].count("hello") == 2


def test_a_failed_turn_is_not_kept() -> None:
    with scripted(thinking, template=QWEN3) as served:
        body = {"messages": [{"role": "user", "content": "one"}], "session_id": "x"}
        served.script.fail = ExecutorError("broke")
        assert served.post(PATH, **body).status_code == 500
        assert len(served.context.sessions) == 0


def test_a_session_keeps_one_answer_of_whole_turns(qwen3: Served) -> None:
    messages = [{"role": "user", "content": "x"}]
    for body in ({"n": 2}, {"continue_final_message": True}, {"add_generation_prompt": False}):
        response = qwen3.post(PATH, messages=messages, session_id="s", **body)
        assert response.status_code == 400
        assert "session" in response.json()["error"]["message"]
