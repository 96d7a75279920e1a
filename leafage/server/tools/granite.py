"""Tool calls of Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from typing import ClassVar

from leafage.server.tools.json_calls import JsonCallParser


class GraniteParser(JsonCallParser):
    """Calls stand in a list behind the marker, anywhere in an answer; any name."""

    opener = "<|tool_call|>"
    closer = "]"
    separator = ","
    list_opener = "["
    markers: ClassVar[tuple[str, ...]] = (opener,)
