"""Tool calls that are JSON objects, `{"name": "f", "arguments": {...}}`: Hermes, Qwen and Llama 3."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, ClassVar

from leafage.server.tools.json_object import JsonObject
from leafage.server.tools.message import DeltaCollector
from leafage.server.tools.parser import ToolParser, is_encodable, is_name, partial_suffix

MAX_HELD_CHARS = 256
"""A call is sent when it is whole and right; one whose arguments are longer than this, as they come."""

_ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCall:
    """One call as it is being written.

    Args:
        names: the names that it may have, None for any. With names there is no other sign that a call was
            meant, so that `name` (or `type`) must come first, and arguments must be there.

    Attributes:
        raw: the text that it was read from, until it is sure.
        name: its function, once the call is sure: it is whole, or so long that it is sent before its end.
        is_over: no more text belongs to it.
    """

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = names
        self._object = JsonObject()
        self._num_sent = 0
        self._whole: str | None = None
        self.raw = ""
        self.name: str | None = None
        self.is_over = False

    def push(self, text: str) -> int:
        """Read on. Returns how many characters were taken."""
        count = self._object.push(text)
        if self.name is None:
            self.raw += text[:count]
        found = self._object
        self.is_over = found.is_complete or found.is_broken or self._cannot_be()
        if self.name is None and not self._cannot_be():
            if found.is_complete:
                self._whole = self._read_whole()
            elif self._is_long():
                self.name = self._read_name()
        return count

    def take_arguments(self) -> str:
        """The next characters of the arguments."""
        if self._whole is not None:
            text, self._whole = self._whole, None
            return text
        start, end = self._arguments()
        text = self._object.text[start + self._num_sent : end]
        self._num_sent += len(text)
        return text

    @property
    def has_whole_arguments(self) -> bool:
        return self._object.is_complete or self._arguments()[1] is not None

    def _cannot_be(self) -> bool:
        """Whether what came shows already that this is no call."""
        if self._names is None:
            return False
        keys = list(self._object.values)
        if keys and keys[0] not in ("name", "type"):
            return True
        return self._object.values.get("name", (0, None))[1] is not None and self._read_name() is None

    def _arguments(self) -> tuple[int, int | None]:
        found = self._object.values
        return next((found[key] for key in found if key in _ARGUMENT_KEYS), (len(self._object.text), None))

    def _value(self, start: int, end: int | None) -> Any:
        return json.loads(self._object.text[start:end])

    def _read_name(self) -> str | None:
        start, end = self._object.values.get("name", (0, None))
        if end is None or self._object.text[start] != '"':
            return None
        name = self._value(start, end)
        return name if is_name(name) and (self._names is None or name in self._names) else None

    def _is_long(self) -> bool:
        start, end = self._arguments()
        text = self._object.text
        return text[start : start + 1] == "{" and len(text[start:end]) > MAX_HELD_CHARS

    def _read_whole(self) -> str | None:
        """The arguments of a complete object that is a call. Sets its name."""
        name = self._read_name()
        start, end = self._arguments()
        text = self._object.text[start:end]
        if name is None or (not text and self._names is not None):
            return None
        if text in ("", "null"):
            text = "{}"
        if text[0] == '"':  # JSON inside a string, as OpenAI's own messages have it
            text = self._value(start, end).strip() or "{}"
            inner = JsonObject()
            if inner.push(text) < len(text) or not inner.is_complete or not is_encodable(text):
                return None
            text = inner.text
        if text[0] != "{":
            return None
        self.name = name
        return text


class NamedCall(JsonCall):
    """One whose name is known: its object is the arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(None)
        self._known = name

    def _arguments(self) -> tuple[int, int | None]:
        return 0, len(self._object.text) if self._object.is_complete else None

    def _read_name(self) -> str:
        return self._known


class JsonCallParser(ToolParser):
    """Calls as JSON objects, each behind a marker.

    Attributes:
        opener: the marker.
        list_opener: what opens a list of calls behind the marker, where they stand in one.
        closer: what ends a call, or the list, behind the marker; where it is missing, the object's end does.
        separator: what a further call may follow instead of a marker.
        begins_bare: whether an answer may begin with a call without a marker, of a listed function.
    """

    opener: ClassVar[str]
    list_opener: ClassVar[str] = ""
    closer: ClassVar[str] = ""
    separator: ClassVar[str] = ""
    begins_bare: ClassVar[bool] = False

    def __init__(self, names: Collection[str], out: DeltaCollector) -> None:
        super().__init__(names, out)
        self._call = JsonCall(None)
        self._lead = ""
        self._is_bare = False
        self._closes = True

    def _start(self, is_final: bool) -> bool:
        text = self._buffer.lstrip()
        if not text and not is_final:
            return False
        if self.begins_bare and text.startswith("{"):
            self._content(self._take(len(self._buffer) - len(text)))
            self._begin("", is_bare=True)
        else:
            self._state = self._in_content
        return True

    def _in_content(self, is_final: bool) -> bool:
        index = self._buffer.find(self.opener)
        if index >= 0:
            self._content(self._take(index))
            lead = self._take(len(self.opener))
            if self.list_opener:
                self._lead, self._state = lead, self._in_list
            else:
                self._begin(lead, is_bare=False)
            return True
        held = 0 if is_final else partial_suffix(self._buffer, self.opener)
        self._content(self._take(len(self._buffer) - held))
        return False

    def _in_list(self, is_final: bool) -> bool:
        """Behind the marker, where a list may begin; a call may also stand alone."""
        text = self._buffer.lstrip()
        rest = text.removeprefix(self.list_opener).lstrip()
        if rest.startswith("{"):
            self._closes = text != rest
            self._begin(self._lead + self._take(len(self._buffer) - len(rest)), is_bare=False)
            return True
        if rest or is_final:
            return self._no_call()
        return False

    def _no_call(self) -> bool:
        """The marker opened none: it is content."""
        self._content(self._lead)
        self._state = self._in_content
        return True

    def _begin(self, lead: str, *, is_bare: bool) -> None:
        """A call may begin here, behind `lead`."""
        self._lead = lead
        self._is_bare = is_bare
        self._call = JsonCall(self._names if is_bare else None)
        self._state = self._in_call

    def _in_call(self, is_final: bool) -> bool:
        call = self._call
        was_sent = call.name is not None
        self._take(call.push(self._buffer))
        if call.name is not None:
            if not was_sent:
                self._out.begin_call(call.name)
            self._out.arguments(call.take_arguments())
            if call.is_over:
                self._state = self._after_call if call.has_whole_arguments else self._in_broken_call
            return call.is_over
        if call.is_over or is_final:  # no call: its text is content, and others may begin in it
            self._content(self._lead)
            self._buffer = call.raw + self._buffer
            self._state = self._in_content
            return True
        return False

    def _in_broken_call(self, is_final: bool) -> bool:
        """A call that was sent in part has ceased to be JSON: the rest of it goes to the client as it is."""
        closer = self.closer if self._closes else ""
        index = self._buffer.find(closer) if closer else -1
        if index >= 0:
            self._out.arguments(self._take(index))
            self._state = self._after_call
            return True
        held = partial_suffix(self._buffer, closer) if closer and not is_final else 0
        self._out.arguments(self._take(len(self._buffer) - held))
        return False

    def _after_call(self, is_final: bool) -> bool:
        text = self._buffer.lstrip()
        closer, separator = (self.closer, self.separator) if self._closes else ("", "")
        if closer and text.startswith(closer):
            self._take(len(self._buffer) - len(text) + len(closer))
        elif separator and text.startswith(separator):
            rest = text[len(separator) :].lstrip()
            if rest.startswith("{"):
                self._begin(self._take(len(self._buffer) - len(rest)), is_bare=self._is_bare)
                return True
            if self.opener.startswith(rest) and not is_final:
                return False
            if not rest or rest.startswith(self.opener):
                self._take(len(self._buffer) - len(rest))
        elif closer.startswith(text) and not is_final:  # also where nothing came yet
            return False
        self._state = self._in_content
        return True
