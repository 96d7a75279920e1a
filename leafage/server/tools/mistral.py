"""Tool calls of Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and of its models since
2025 `[TOOL_CALLS]name[ARGS]{...}`, once for each call."""

from __future__ import annotations

import re
import secrets
import string
from typing import ClassVar

from leafage.server.tools.json_calls import JsonCallParser, NamedCall

_ARGS = "[ARGS]"
_HEAD = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
"""Between the marker and the arguments. The first group is the function's name."""
_MAX_HEAD = 200
"""Characters of it."""


class MistralParser(JsonCallParser):
    """Calls stand behind the marker, anywhere in an answer; any name."""

    opener = "[TOOL_CALLS]"
    closer = "]"
    separator = ","
    list_opener = "["
    markers: ClassVar[tuple[str, ...]] = (opener, _ARGS, "[CALL_ID]")

    @staticmethod
    def new_id() -> str:
        """Its chat templates take ids of nine letters and digits, and no others."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def _in_list(self, is_final: bool) -> bool:
        text = self._buffer.lstrip()
        if text.startswith(("{", self.list_opener)):
            return super()._in_list(is_final)
        end = self._buffer.find("{")
        if end < 0 and not is_final and (not text or len(self._buffer) <= _MAX_HEAD):
            return False
        head = _HEAD.fullmatch(self._buffer[:end]) if 0 <= end <= _MAX_HEAD else None
        if head is None:
            return self._no_call()
        self._begin(self._lead + self._take(end), is_bare=False)
        self._call = NamedCall(head[1])
        self._closes = False
        return True
