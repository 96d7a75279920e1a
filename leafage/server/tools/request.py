"""What a request says about tools: the functions, and whether the model may call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leafage.errors import InvalidParameterError, UnsupportedError


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, checked.

    Attributes:
        definitions: as the request lists them; empty where the model shall call none.
        names: of their functions.
        max_calls: calls beyond it are left out of the answer; None: no limit.
    """

    definitions: tuple[Mapping[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    max_calls: int | None = None

    @property
    def schemas(self) -> dict[str, Any]:
        """JSON Schema of each function's arguments, by name; None where the request has none."""
        functions = (tool["function"] for tool in self.definitions)
        return {function["name"]: function.get("parameters") for function in functions}

    @classmethod
    def of(
        cls,
        tools: Sequence[Any] | None,
        tool_choice: object = None,
        parallel_tool_calls: bool | None = None,
    ) -> ToolUse:
        """From a request's fields.

        `tool_choice`: 'auto' (the default) leaves it to the model, 'none' does not show it the tools;
        'required' and a named function cannot be promised and are refused. `parallel_tool_calls` false: the
        first call of an answer is kept.

        Raises:
            InvalidParameterError: a field is malformed.
            UnsupportedError: something that only forced output can promise, or a tool that is no function.
        """
        names = [_name(f"tools[{i}]", tool) for i, tool in enumerate(tools or ())]
        repeated = next((name for name, count in Counter(names).items() if count > 1), None)
        if repeated is not None:
            raise InvalidParameterError(
                "tools: two functions have one name", value=repeated, remedy="give each its own"
            )
        if not _may_call(tool_choice, names):
            return cls()
        return cls(tuple(tools or ()), frozenset(names), 1 if parallel_tool_calls is False else None)


def _name(where: str, tool: Any) -> str:
    """The function's name."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedError(f"{where}.type is not supported", value=kind, limit="function")
    if kind is None or not isinstance(function, Mapping):
        raise InvalidParameterError(
            f"{where} must be a function", remedy='pass {"type": "function", "function": {"name": ..., ...}}'
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidParameterError(
            f"{where}.function.name must be a string", value=repr(name), remedy="name the function"
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidParameterError(
            f"{where}.function.parameters must be a JSON Schema", value=type(parameters).__name__
        )
    if function.get("strict"):
        raise UnsupportedError(
            f"{where}.function.strict: arguments cannot be forced into the schema yet",
            value="true",
            remedy="leave it out, and check the arguments",
        )
    return name


def _may_call(choice: object, names: list[str]) -> bool:
    """Whether the model may call a function."""
    if choice is None or choice in ("auto", "none"):
        return choice != "none"
    shown = choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        shown = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or not isinstance(shown, str):
            raise InvalidParameterError(
                "tool_choice is malformed", remedy='pass {"type": "function", "function": {"name": ...}}'
            )
    elif choice != "required":
        limit = "none, auto, required or a function"
        raise InvalidParameterError("unknown tool_choice", value=choice, limit=limit)
    if not names:
        raise InvalidParameterError(
            "tool_choice needs tools", value=shown, remedy="list the functions in tools"
        )
    if shown != "required" and shown not in names:
        raise InvalidParameterError(
            "tool_choice names a function that tools does not list", value=shown, limit=", ".join(names)
        )
    raise UnsupportedError(
        "tool_choice: a call cannot be forced yet", value=shown, limit="none or auto", remedy="use 'auto'"
    )
