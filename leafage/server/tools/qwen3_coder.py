"""Tool calls of Qwen3-Coder, in tags of their own:

<tool_call>
<function=f>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from leafage.server.tools.message import DeltaCollector
from leafage.server.tools.parser import ToolParser, is_encodable, partial_suffix

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_HEAD = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}


class Qwen3CoderParser(ToolParser):
    """A call stands between tags, anywhere, with any name. The models now and then leave the outer tag out:
    then only functions that the request lists are calls.

    Values are text in the answer; the function's JSON Schema tells which of them are other JSON. Calls are
    sent when they are whole.

    Args:
        names: the functions that the request listed; a mapping has their JSON Schemas.
    """

    markers: ClassVar[tuple[str, ...]] = (_CALL, _END_CALL)

    def __init__(self, names: Collection[str], out: DeltaCollector) -> None:
        super().__init__(names, out)
        self._schemas: Mapping[str, Any] = names if isinstance(names, Mapping) else {}
        self._closer = ""

    def _start(self, is_final: bool) -> bool:
        found = [index for marker in (_CALL, _FUNCTION) if (index := self._buffer.find(marker)) >= 0]
        if found:
            self._content(self._take(min(found)))
            self._closer = _END_CALL if self._buffer.startswith(_CALL) else _END_FUNCTION
            self._state = self._in_call
            return True
        held = 0 if is_final else max(partial_suffix(self._buffer, one) for one in (_CALL, _FUNCTION))
        self._content(self._take(len(self._buffer) - held))
        return False

    def _in_call(self, is_final: bool) -> bool:
        is_tagged = self._closer == _END_CALL
        opener = _CALL if is_tagged else ""
        lead = self._buffer[len(opener) :].lstrip()[: len(_FUNCTION)]
        if not _FUNCTION.startswith(lead):
            self._content(self._take(len(opener)))
            self._state = self._start
            return True
        index = self._buffer.find(self._closer)
        if index < 0 and not is_final:
            return False
        end = index + len(self._closer) if index >= 0 else len(self._buffer)
        inside = self._buffer[len(opener) : index if is_tagged and index >= 0 else end]
        call = self._read(inside)
        if call is None or not (is_tagged or call[0] in self._names):
            self._content(self._take(len(opener or _FUNCTION)))  # another call may begin in the rest
            self._state = self._start
            return True
        self._take(end)
        self._out.begin_call(call[0])
        self._out.arguments(call[1])
        self._state = self._start if is_tagged else self._after_function
        return True

    def _after_function(self, is_final: bool) -> bool:
        """The tag that closes what was not opened."""
        text = self._buffer.lstrip()
        if _END_CALL.startswith(text) and text != _END_CALL and not is_final:
            return False
        if text.startswith(_END_CALL):
            self._take(len(self._buffer) - len(text) + len(_END_CALL))
        self._state = self._start
        return True

    def _read(self, text: str) -> tuple[str, str] | None:
        """Name and arguments of a call; None: it is none."""
        text = text.strip()
        head = _HEAD.match(text)
        if head is None or not text.endswith(_END_FUNCTION):
            return None
        name, rest = head[1], text[head.end() : -len(_END_FUNCTION)].strip()
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        arguments: dict[str, str] = {}
        position = 0
        while position < len(rest):
            parameter = _PARAMETER.match(rest, position)
            if parameter is None:
                return None
            key = parameter[1].strip()
            known = properties.get(key) if isinstance(properties, Mapping) else None
            arguments[key] = _json_of(parameter[2], _types(known))
            position = parameter.end()
        pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in arguments.items())
        written = "{" + ", ".join(pairs) + "}"
        return (name, written) if is_encodable(name + written) else None


def _types(schema: object) -> frozenset[str]:
    """JSON types that a schema names; none where it says nothing."""
    if not isinstance(schema, Mapping):
        return frozenset()
    found: set[str] = set()
    kinds = schema.get("type")
    found.update(one for one in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(one, str))
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, Mapping) and isinstance(branch.get("type"), str):
                found.add(branch["type"])
    return frozenset(found)


def _json_of(value: str, types: frozenset[str]) -> str:
    """A value as JSON: text stays text where the schema allows it, or where it is nothing else."""
    word = _WORDS.get(value.strip(), value.strip())
    is_text = "string" in types and not (word == "null" and "null" in types)
    if not is_text:
        try:
            json.loads(word, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        else:
            return word
    return json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
