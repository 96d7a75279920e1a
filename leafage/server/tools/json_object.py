"""A JSON object read while it is being written."""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR_CHARS = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_SCALAR_STARTS = frozenset("-0123456789tfn")
_CONTROL = {chr(i): json.dumps(chr(i))[1:-1] for i in range(32)}


class JsonObject:
    """An incremental reader of one object (RFC 8259) that looks at each character once.

    It knows where the values of the object's own keys stand, and it stops where the text stops being JSON. In
    one thing it is lenient: control characters inside strings, which models do write, are taken and escaped.

    Attributes:
        text: what was read, valid JSON as far as it goes.
        values: for each key of the object, in order, where its value starts and ends in `text`; None as the
            end of a value that is not complete.
        is_complete: the object has ended.
        is_broken: what came is no JSON, or repeats a key.
    """

    def __init__(self) -> None:
        self.text = ""
        self.values: dict[str, tuple[int, int | None]] = {}
        self.is_complete = False
        self.is_broken = False
        self._new: list[str] = []
        self._length = 0
        self._nesting: list[str] = []
        self._state = self._first
        self._is_key = False
        self._token_start = 0
        self._token = ""
        self._key = ""
        self._num_hex = 0

    def push(self, text: str) -> int:
        """Read on. Returns how many characters were taken: all, unless it completed or broke."""
        position = 0
        while position < len(text) and not self.is_complete and not self.is_broken:
            position = self._state(text, position)
        self.text += "".join(self._new)
        self._new.clear()
        return position

    # A state takes characters from `position` on and returns where it stopped. It may take none if it sets
    # another state.

    def _put(self, text: str) -> None:
        self._new.append(text)
        self._length += len(text)

    def _break(self, position: int) -> int:
        self.is_broken = True
        return position

    def _skip_space(self, text: str, position: int) -> int:
        end = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it always matches
        self._put(text[position:end])
        return end

    def _first(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        return self._open(text, position) if text[position] == "{" else self._break(position)

    def _open(self, text: str, position: int) -> int:
        self._put(text[position])
        self._nesting.append(text[position])
        self._state = self._key_or_end if text[position] == "{" else self._value_or_end
        return position + 1

    def _key_or_end(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position < len(text) and text[position] == "}":
            return self._close(text, position)
        return self._key_start(text, position)

    def _key_start(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != '"':
            return self._break(position)
        return self._string_start(text, position, is_key=True)

    def _value_or_end(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position < len(text) and text[position] == "]":
            return self._close(text, position)
        return self._value(text, position)

    def _value(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        if len(self._nesting) == 1:
            self.values[self._key] = (self._length, None)
        char = text[position]
        if char in "{[":
            return self._open(text, position)
        if char == '"':
            return self._string_start(text, position, is_key=False)
        if char not in _SCALAR_STARTS:
            return self._break(position)
        self._token = ""
        self._state = self._scalar
        return position

    def _string_start(self, text: str, position: int, *, is_key: bool) -> int:
        self._is_key = is_key
        self._token = ""
        self._put('"')
        self._state = self._string
        return position + 1

    def _string(self, text: str, position: int) -> int:
        end = _PLAIN.match(text, position).end()  # type: ignore[union-attr]
        self._put_string(text[position:end])
        if end == len(text):
            return end
        char = text[end]
        if char == '"':
            self._put('"')
            self._end_string()
            return end + 1
        if char == "\\":
            self._state = self._escape
        self._put_string(_CONTROL.get(char, char))
        return end + 1

    def _put_string(self, text: str) -> None:
        self._put(text)
        if self._is_key and len(self._nesting) == 1:
            self._token += text

    def _end_string(self) -> None:
        if not self._is_key:
            self._end_value()
            return
        self._state = self._colon
        if len(self._nesting) == 1:
            self._key = json.loads(f'"{self._token}"')
            self.is_broken = self._key in self.values

    def _escape(self, text: str, position: int) -> int:
        char = text[position]
        if char not in '"\\/bfnrtu':
            return self._break(position)
        self._put_string(char)
        self._num_hex = 0
        self._state = self._hex if char == "u" else self._string
        return position + 1

    def _hex(self, text: str, position: int) -> int:
        if text[position] not in _HEX:
            return self._break(position)
        self._put_string(text[position])
        self._num_hex += 1
        if self._num_hex == 4:
            self._state = self._string
        return position + 1

    def _colon(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != ":":
            return self._break(position)
        self._put(":")
        self._state = self._value
        return position + 1

    def _scalar(self, text: str, position: int) -> int:
        end = _SCALAR_CHARS.match(text, position).end()  # type: ignore[union-attr]
        self._token += text[position:end]
        self._put(text[position:end])
        if end == len(text):
            return end
        if _SCALAR.fullmatch(self._token) is None:
            return self._break(end)
        self._end_value()
        return end

    def _end_value(self) -> None:
        if len(self._nesting) == 1:
            self.values[self._key] = (self.values[self._key][0], self._length)
        self._state = self._comma_or_end

    def _comma_or_end(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        char = text[position]
        if char == ",":
            self._put(",")
            self._state = self._key_start if self._nesting[-1] == "{" else self._value
            return position + 1
        if char != ("}" if self._nesting[-1] == "{" else "]"):
            return self._break(position)
        return self._close(text, position)

    def _close(self, text: str, position: int) -> int:
        self._put(text[position])
        self._nesting.pop()
        if self._nesting:
            self._end_value()
        else:
            self.is_complete = True
        return position + 1
