"""Parsers by template."""

from __future__ import annotations

import pytest

from leafage.server.tools.choose import PARSERS, choose_reasoning, choose_tool_parser
from tests.server.tools.formats import source


@pytest.mark.parametrize(
    ("template", "parser", "thinks"),
    [
        ("qwen3", "hermes", True),
        ("qwen2.5", "hermes", False),
        ("hermes", "hermes", False),
        ("llama3", "llama3", False),
        ("gemma3", "gemma", False),
        ("granite", "granite", True),
        ("mistral", "mistral", False),
        ("qwen3_coder", "qwen3_coder", False),
        ("chatml", None, False),
    ],
)
def test_by_the_models_template(template: str, parser: str | None, thinks: bool) -> None:
    assert choose_tool_parser("auto", source(template)) is PARSERS.get(parser or "")
    assert choose_reasoning("auto", source(template)) is thinks


def test_xml_inside_tool_call_is_another_format() -> None:
    assert choose_tool_parser("auto", "<tool_call>\n<function=f>") is None


def test_by_name() -> None:
    for name, parser in PARSERS.items():
        assert choose_tool_parser(name, "") is parser
    assert choose_tool_parser("none", source("qwen3")) is None
    assert choose_reasoning("think", "") and not choose_reasoning("none", source("qwen3"))
