"""Tool calls of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from typing import ClassVar

from leafage.server.tools.json_calls import JsonCallParser


class HermesParser(JsonCallParser):
    """A call stands between tags, anywhere in an answer, and there may be several. Its name is passed on even
    if the request lists no such function: the tag says what the model meant, and clients can answer it."""

    opener = "<tool_call>"
    closer = "</tool_call>"
    markers: ClassVar[tuple[str, ...]] = (opener, closer)
