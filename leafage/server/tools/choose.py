"""Which parsers a model needs, told by its chat template or by the operator."""

from __future__ import annotations

from leafage.server.tools.gemma import GemmaParser
from leafage.server.tools.granite import GraniteParser
from leafage.server.tools.hermes import HermesParser
from leafage.server.tools.llama3 import Llama3Parser
from leafage.server.tools.mistral import MistralParser
from leafage.server.tools.parser import ToolParser
from leafage.server.tools.qwen3_coder import Qwen3CoderParser
from leafage.server.tools.reasoning import THINK_CLOSE, THINK_OPEN

AUTO = "auto"
NONE = "none"
PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3": Llama3Parser,
    "gemma": GemmaParser,
    "mistral": MistralParser,
    "granite": GraniteParser,
    "qwen3_coder": Qwen3CoderParser,
}
TOOL_PARSERS = (AUTO, *PARSERS, NONE)
TOOL_TEMPLATES = ("model", "hermes")
REASONING_PARSERS = (AUTO, "think", NONE)

_OTHER_USES = ("<function=", "<arg_key>")
"""In templates whose <tool_call> holds no JSON (Qwen3-Coder, GLM)."""


def choose_tool_parser(name: str, template: str) -> type[ToolParser] | None:
    """The parser of a name of TOOL_PARSERS; with 'auto' the one of the family that wrote the template.

    Args:
        template: Jinja source of the model's chat template.
    """
    if name != AUTO:
        return PARSERS.get(name)
    if HermesParser.opener in template and not any(mark in template for mark in _OTHER_USES):
        return HermesParser
    if "<tool_call>" in template and "<function=" in template and "<parameter=" in template:
        return Qwen3CoderParser
    if MistralParser.opener in template:
        return MistralParser
    if GraniteParser.opener in template and "<|start_of_role|>" in template:
        return GraniteParser
    if Llama3Parser.opener in template or "<|start_header_id|>" in template:
        return Llama3Parser
    return GemmaParser if "<start_of_turn>" in template else None


def choose_reasoning(name: str, template: str) -> bool:
    """Whether reasoning is split off, by a name of REASONING_PARSERS; with 'auto' where the template has the
    tags."""
    return THINK_OPEN in template or THINK_CLOSE in template if name == AUTO else name != NONE
