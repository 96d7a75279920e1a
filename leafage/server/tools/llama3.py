"""Tool calls of Llama 3.1 and 3.2: `{"name": ..., "parameters": {...}}`, behind `<|python_tag|>` or not."""

from __future__ import annotations

from typing import ClassVar

from leafage.server.tools.json_calls import JsonCallParser


class Llama3Parser(JsonCallParser):
    """A call stands at the start of an answer, or behind the marker; `;` separates several. Without the
    marker only the functions that the request lists are calls: any other JSON object may be an answer."""

    opener = "<|python_tag|>"
    separator = ";"
    begins_bare = True
    markers: ClassVar[tuple[str, ...]] = (opener,)
