"""Chat formats in tests: templates of model families over a small vocabulary."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from leafage.server.tools.chat_format import ChatFormat
from leafage.text.byte_level import BYTE_OF_CHAR
from leafage.text.chat_template import ChatTemplate
from leafage.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parents[1] / "text" / "golden" / "templates.json.gz"
STORED: dict[str, Any] = json.loads(gzip.decompress(GOLDEN.read_bytes()))
PUBLISHED = {
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
    "granite": "ibm-granite-granite-3.3-2B-Instruct",
}
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Of SmolLM2's kind: it takes no tools."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER = {"role": "user", "content": "What is the weather in Köln?"}
ARGUMENTS = '{"city": "Köln"}'
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "get_weather", "arguments": ARGUMENTS},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "rain"}


def source(name: str) -> str:
    """A template by the name of its family."""
    if name == "chatml":
        return CHATML
    if name in PUBLISHED:
        found: str = STORED[PUBLISHED[name]]["source"]
        return found
    return (FOLDER / "templates" / f"{name}.jinja").read_text()


@cache
def tokenizer(special: Sequence[str] = ()) -> Tokenizer:
    """Bytes as ids 0 to 255, then control tokens."""
    special = ("<|im_start|>", "<|im_end|>", *special)
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": [*sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__), *special],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(special),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 257,
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def chat_format(name: str, *, special: Sequence[str] = (), **settings: str) -> ChatFormat:
    template = ChatTemplate(source(name), bos_token="", eos_token="<|im_end|>")
    return ChatFormat(tokenizer(tuple(special)), template, **settings)
