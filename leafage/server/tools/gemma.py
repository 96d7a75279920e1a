"""Tool calls of Gemma 3, which has no token for them.

Google's guide to function calling with Gemma prompts for `[f(a=1), g()]` or for
`{"name": "f", "parameters": {...}}` and nothing else in the answer; the models like to put either into a
fence, ```tool_code or ```json.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Collection
from typing import Any, ClassVar

from leafage.server.tools.message import DeltaCollector
from leafage.server.tools.parser import ToolParser, is_encodable

_FENCE = "```"
_LABELS = ("tool_code\n", "json\n")
_JSON_NAMES = {"true": True, "false": False, "null": None}


class GemmaParser(ToolParser):
    """Calls stand bare at the start of an answer, or in a fence anywhere. Only functions that the request
    lists can be called: with no token that says so, everything else is code or data that the model shows.

    Calls are sent when they are whole, since the arguments of the Python form are not JSON.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Collection[str], out: DeltaCollector) -> None:
        super().__init__(names, out)
        self._scanner = BracketScanner(stops_at_fence=False)
        self._lead = ""
        self._block = ""

    def _start(self, is_final: bool) -> bool:
        text = self._buffer.lstrip()
        may_call = self._may_be_calls(text) if text[:1] in ("", "[", "{") else False
        if may_call is None and not is_final:
            return False
        self._content(self._take(len(self._buffer) - len(text)))
        if may_call:
            self._begin("", is_fenced=False)
        else:
            self._state = self._in_content
        return True

    def _in_content(self, is_final: bool) -> bool:
        index = self._buffer.find(_FENCE)
        if index < 0:
            held = 0 if is_final else len(self._buffer) - len(self._buffer.rstrip("`"))
            self._content(self._take(len(self._buffer) - held))
            return False
        self._content(self._take(index))
        inside = self._buffer[len(_FENCE) :]
        label = next((label for label in _LABELS if inside.startswith(label)), None)
        if label is None:
            if any(label.startswith(inside) for label in _LABELS) and not is_final:
                return False
            self._content(self._take(len(_FENCE)))
            return True
        may_call = self._may_be_calls(inside[len(label) :].lstrip())
        if may_call is None and not is_final:
            return False
        lead = self._take(len(_FENCE) + len(label))
        if may_call:
            self._begin(lead, is_fenced=True)
        else:
            self._content(lead)
        return True

    def _may_be_calls(self, text: str) -> bool | None:
        """Whether the beginning of a block is one of calls; None while too little of it came."""
        if text.startswith("["):
            text = text[1:].lstrip()
        if text.startswith("{"):
            key, rest = '"name"', text[1:].lstrip()
            return True if rest.startswith(key) else None if key.startswith(rest) else False
        undecided = text == ""
        for name in self._names:
            if text.startswith(name):
                rest = text[len(name) :].lstrip()
                if rest.startswith("("):
                    return True
                undecided |= rest == ""
            undecided |= name.startswith(text)
        return None if undecided else False

    def _begin(self, lead: str, *, is_fenced: bool) -> None:
        """Calls may begin here, behind `lead`."""
        self._lead = lead
        self._block = ""
        self._scanner = BracketScanner(stops_at_fence=is_fenced)
        self._state = self._in_block

    def _in_block(self, is_final: bool) -> bool:
        self._block += self._take(self._scanner.push(self._buffer))
        if not self._scanner.has_stopped and not is_final:
            return False
        calls = read_calls(self._block.removesuffix(_FENCE), self._names)
        if calls is None:
            self._content(self._lead + self._block)
        for name, arguments in calls or ():
            self._out.begin_call(name)
            self._out.arguments(arguments)
        self._state = self._in_content
        return True


class BracketScanner:
    """Finds where a block of Python or JSON ends, as it comes, looking at each character once.

    Args:
        stops_at_fence: it ends with a fence outside strings; otherwise where its first bracket closes.
    """

    def __init__(self, *, stops_at_fence: bool) -> None:
        self._stops_at_fence = stops_at_fence
        self._depth = 0
        self._quote = ""
        self._run = ""
        self._is_escaped = False
        self.has_stopped = False

    def push(self, text: str) -> int:
        """Read on. Returns how many characters belong to the block."""
        for position, char in enumerate(text):
            self._read(char)
            if self.has_stopped:
                return position + 1
        return len(text)

    def _read(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
            return
        if self._run:
            if char == self._run[0]:
                self._run += char
                if len(self._run) == 3:
                    self._end_run()
                return
            self._end_run()
        if self._quote:
            if char == "\\":
                self._is_escaped = True
            elif char == self._quote:
                self._quote = ""
            elif char == self._quote[0]:
                self._run = char
        elif char in "\"'" or (char == "`" and self._stops_at_fence):
            self._run = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
            self.has_stopped = self._depth <= 0 and not self._stops_at_fence

    def _end_run(self) -> None:
        """Quotes in a row: one opens a string, two are an empty one, three open or close a long one."""
        run, self._run = self._run, ""
        if run[0] == "`":
            self.has_stopped = len(run) == 3
        elif self._quote:
            self._quote = "" if run == self._quote else self._quote
        elif len(run) != 2:
            self._quote = run


def read_calls(text: str, names: Collection[str]) -> list[tuple[str, str]] | None:
    """Names and arguments, as JSON, of the calls that a text consists of; None if it is anything else."""
    text = text.strip()
    try:
        calls = _json_calls(text) if text.startswith(("{", "[{")) else _python_calls(text)
        found = [
            (name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)) for name, arguments in calls
        ]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not found or any(name not in names or not is_encodable(arguments) for name, arguments in found):
        return None
    return found


def _json_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    calls = json.loads(text, strict=False)
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get("parameters", call.get("arguments")) if isinstance(call, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError("no call")
        found.append((name, arguments))
    return found


def _python_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    with warnings.catch_warnings():  # of the model's code, for example of its escapes
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    found = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("no call")
        nodes = statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
        found += [_python_call(node) for node in nodes]
    return found


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("no call, or one without keywords")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments are not spelled out")
        arguments[keyword.arg] = _value(keyword.value)
    return node.func.id, arguments


def _value(node: ast.expr) -> Any:
    """A literal, of Python or of JSON."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        found = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise ValueError("JSON has strings as keys")
            found[key.value] = _value(value)
        return found
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError("JSON has no such value")
    return value
