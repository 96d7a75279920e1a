"""Conversations with tools through templates of the model families, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from leafage.errors import TemplateError, UnsupportedError
from leafage.server.tools.chat_format import ChatFormat
from leafage.server.tools.request import ToolUse
from leafage.text.chat_template import ChatTemplate, encode_chat
from tests.server.tools.formats import ARGUMENTS, CALL, RESULT, STORED, USER, WEATHER, chat_format, tokenizer
from tests.server.tools.reading import calls

TOOLS = ToolUse.of([WEATHER])
NO_TOOLS = ToolUse()


def encode(format: ChatFormat, messages: list[Any], tools: ToolUse = TOOLS, **kwargs: Any) -> list[int]:
    written, definitions = format.write(messages, tools)
    return encode_chat(tokenizer(), format.template, written, tools=definitions, **kwargs)


def prompt(format: ChatFormat, messages: list[Any], tools: ToolUse = TOOLS, **kwargs: Any) -> str:
    return tokenizer().decode(encode(format, messages, tools, **kwargs), skip_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "qwen3",
            [
                '<tools>\n{"type": "function", "function": {"name": "get_weather"',
                "<|im_start|>assistant\n"
                f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>\n',
                "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n",
                "<|im_start|>assistant\n",
            ],
        ),
        (
            "qwen2.5",
            [f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>', "rain"],
        ),
        (
            "hermes",
            [
                "<tools>\n",
                f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>\n',
                "<|im_start|>tool\n<tool_response>\nrain\n</tool_response><|im_end|>\n",
            ],
        ),
        (
            "llama3",
            [
                '"name": "get_weather"',
                f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}<|eot_id|>',
                "<|start_header_id|>ipython<|end_header_id|>\n\nrain<|eot_id|>",
            ],
        ),
        ("gemma3", ['"name": "get_weather"', '[get_weather(city="Köln")]', "<start_of_turn>user\nrain"]),
    ],
)
@pytest.mark.parametrize("content", [None, "", "absent"])
def test_tools_calls_and_results_reach_the_prompt(name: str, parts: list[str], content: str | None) -> None:
    """In whatever way a client says that a message of calls has no content."""
    call = {**CALL, "content": content}
    if content == "absent":
        del call["content"]
    text = prompt(chat_format(name), [USER, call, RESULT])
    for part in parts:
        assert part in text
        text = text[text.index(part) + len(part) :]


def test_content_beside_calls_stays() -> None:
    for name in ("qwen3", "hermes"):
        text = prompt(chat_format(name), [USER, {**CALL, "content": "I look."}, RESULT])
        assert "<|im_start|>assistant\nI look.\n<tool_call>" in text


def test_a_template_that_tells_calls_by_content_that_is_none() -> None:
    """As DeepSeek's do."""
    source = (
        "{{ tools | tojson if tools }}{% for m in messages %}"
        "{% if m.role == 'assistant' and m.content is none %}{{ m.tool_calls | tojson }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, bos_token="", eos_token="")
    format = ChatFormat(tokenizer(), template, tool_parser="hermes")
    assert '"arguments": {"city": "Köln"}' in prompt(format, [USER, {**CALL, "content": ""}, RESULT])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen3", f'<think>\nI call.\n</think>\n\n<tool_call>\n{{"name": "get_weather", "arguments": '
                  f"{ARGUMENTS}}}\n</tool_call>"),
        ("qwen2.5", f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'),
        ("hermes", f'<tool_call>\n{{"arguments": {ARGUMENTS}, "name": "get_weather"}}\n</tool_call>'),
        ("llama3", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}'),
        ("gemma3", '```tool_code\n[get_weather(city="Köln")]\n```'),
        ("mistral", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGUMENTS}}}]'),
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n"
                        "</function>\n</tool_call>"),
    ],
)  # fmt: skip
def test_a_conversation_with_a_call(name: str, answer: str) -> None:
    """Question, the model's call, the result in the next turn: what was parsed goes back into the prompt."""
    format = chat_format(name)
    ids = encode(format, [USER], TOOLS)
    parser = format.new_parser(TOOLS, ids)
    message = parser.parse(answer)
    assert calls(message) == [("get_weather", ARGUMENTS)] and message.content == ""
    assert message.reasoning == ("I call." if name == "qwen3" else "")
    assert parser.finish_reason("stop") == "tool_calls"
    turn = message.to_json()
    text = prompt(format, [USER, turn, {**RESULT, "tool_call_id": turn["tool_calls"][0]["id"]}])
    assert "Köln" in text[text.index(USER["content"]) + len(USER["content"]) :] and "rain" in text
    if name == "qwen3":
        assert "<think>\nI call.\n</think>\n\n<tool_call>" in text


def test_without_tools_nothing_is_a_call() -> None:
    format = chat_format("qwen3")
    for tools in (NO_TOOLS, ToolUse.of([WEATHER], "none")):
        ids = encode(format, [USER], tools)
        assert "get_weather" not in tokenizer().decode(ids)
        text = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
        message = format.new_parser(tools, ids).parse(text)
        assert message.content == text and not message.tool_calls


@pytest.mark.parametrize("name", ["chatml", "smollm3"])
def test_a_template_without_tool_support_is_told(name: str) -> None:
    format = chat_format(name, tool_parser="hermes")
    with pytest.raises(UnsupportedError, match=r"no tool support.*--tool-template hermes"):
        encode(format, [USER], TOOLS)
    assert prompt(format, [USER], NO_TOOLS).endswith("assistant\n")


def test_calls_that_a_template_drops_are_refused() -> None:
    for name in ("chatml", "granite"):
        with pytest.raises(UnsupportedError, match="does not write calls"):
            encode(chat_format(name), [USER, CALL, RESULT], NO_TOOLS)


def test_a_template_may_refuse() -> None:
    two = {**CALL, "tool_calls": [CALL["tool_calls"][0]] * 2}
    with pytest.raises(TemplateError, match="one call at a time"):
        encode(chat_format("llama3"), [USER, two, RESULT], TOOLS)


def test_tools_without_a_parser_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no parser.*--tool-parser"):
        encode(
            ChatFormat(tokenizer(), ChatTemplate("{{ tools }}", bos_token="", eos_token="")), [USER], TOOLS
        )
    with pytest.raises(UnsupportedError, match="no parser"):
        encode(chat_format("qwen3", tool_parser="none"), [USER], TOOLS)
    assert "get_weather" in prompt(chat_format("granite", tool_parser="hermes"), [USER])


def test_the_hermes_tool_template_serves_any_model() -> None:
    format = chat_format("chatml", tool_template="hermes")
    text = prompt(format, [USER, CALL, RESULT])
    assert '\n<tools>\n{"type": "function", "function": {"name": "get_weather"' in text
    assert text.endswith(
        f"<|im_start|>user\n{USER['content']}<|im_end|>\n"
        f'<|im_start|>assistant\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    message = format.new_parser(TOOLS, encode(format, [USER], TOOLS)).parse(
        '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    )
    assert calls(message) == [("get_weather", "{}")]
    assert "<tools>" not in prompt(format, [USER], NO_TOOLS)


OPENING = "{{ messages[-1].content }}<|im_start|>assistant\n<think>\n"


def test_reasoning_where_the_prompt_opened_it() -> None:
    for special in ((), ("<think>", "</think>")):
        model = tokenizer(special)
        format = ChatFormat(model, ChatTemplate(OPENING, bos_token="", eos_token=""))
        message = format.new_parser(NO_TOOLS, encode(format, [USER], NO_TOOLS)).parse(
            "Hm.\n</think>\n\nRain."
        )
        assert (message.reasoning, message.content) == ("Hm.", "Rain.")
        assert format.needs_special_tokens(NO_TOOLS) == bool(special)


def test_reasoning_that_is_switched_off() -> None:
    format = chat_format("qwen3")
    ids = encode(format, [USER], NO_TOOLS, enable_thinking=False)
    message = format.new_parser(NO_TOOLS, ids).parse("Rain. </think>")
    assert (message.reasoning, message.content) == ("", "Rain. </think>")


def test_markers_that_are_control_tokens_are_asked_for() -> None:
    llama = chat_format("llama3", special=("<|python_tag|>",))
    assert llama.needs_special_tokens(TOOLS) and not llama.needs_special_tokens(NO_TOOLS)
    assert not chat_format("llama3").needs_special_tokens(TOOLS)


def test_stored_prompts_of_qwen3_come_out_the_same() -> None:
    """What transformers renders with its template, tools and calls among it."""
    with_tools = 0
    for entry in STORED["Qwen-Qwen3-0.6B"]["cases"]:
        case = dict(entry["case"])
        if case.get("add_generation_prompt") is False:
            continue
        tools = ToolUse.of(case.pop("tools", None))
        with_tools += bool(tools.definitions)
        assert prompt(chat_format("qwen3"), case.pop("messages"), tools, **case) == entry["text"]
    assert with_tools == 2
