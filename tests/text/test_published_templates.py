"""Chat templates of Qwen 2.5, Qwen 3, SmolLM3 and Granite 3.3 against what transformers renders with them
(scripts/golden/chat_templates.py)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import TemplateError
from leafage.text import chat_template
from leafage.text.byte_level import BYTE_OF_CHAR
from leafage.text.chat_template import ChatTemplate, encode_chat
from leafage.text.tokenizer import Tokenizer

STORED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parent / "golden" / "templates.json.gz").read_bytes())
)
CASES = [(name, entry["case"], entry["text"]) for name, stored in STORED.items() for entry in stored["cases"]]
QWEN3 = STORED["Qwen-Qwen3-0.6B"]["source"]


@pytest.mark.parametrize(("name", "case", "expected"), CASES)
def test_renders_as_transformers_does(
    name: str, case: dict[str, Any], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "_strftime_now", lambda form: "DATE")
    template = ChatTemplate(STORED[name]["source"], bos_token="", eos_token="<|im_end|>")
    options = dict(case)
    messages = options.pop("messages")
    if expected is None:
        with pytest.raises(TemplateError):
            template.render(messages, **options)
    else:
        assert template.render(messages, **options) == expected


def qwen3() -> Tokenizer:
    """Bytes as ids 0 to 255, then Qwen 3's tokens, with the types that its GGUF files give them."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": [
                *sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__),
                *special,
                *["<think>", "</think>"],
            ],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * 3 + [4] * 2,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": 256,
            "tokenizer.ggml.eos_token_id": 258,
            "tokenizer.ggml.padding_token_id": 256,
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def test_qwen3_ends_and_thinks_as_it_declares() -> None:
    """Either end token ends an answer. The marks of thinking are one token each, and text that users see."""
    model = qwen3()
    assert model.eos_ids == {256, 258} and not model.add_bos
    messages = [{"role": "user", "content": "<|im_end|> <think>"}]
    ids = encode_chat(model, ChatTemplate.of(model, QWEN3), messages, enable_thinking=False)
    assert [i for i in ids if i >= 256] == [257, 259, 258, 257, 259, 260]
    assert model.decode([259, *b"x", 260, 258]) == "<think>x</think>"
