"""Deltas and what they add up to."""

from __future__ import annotations

from leafage.server.tools.message import DeltaCollector, Message, MessageDelta, ToolCall, ToolCallDelta

FIRST = ToolCallDelta(0, id="a", name="f")
REST = ToolCallDelta(0, "{}")


def test_deltas_add_up() -> None:
    one = MessageDelta("r", "c", (FIRST,))
    two = MessageDelta("R", "C", (REST,))
    assert one + two == MessageDelta("rR", "cC", (FIRST, REST))
    assert (
        Message.of([one, two]) == Message.of([one + two]) == Message("rR", "cC", [ToolCall("a", "f", "{}")])
    )
    assert not MessageDelta() and MessageDelta().to_json() == [] and one


def test_calls_beyond_the_limit_are_dropped_with_their_arguments() -> None:
    collector = DeltaCollector(max_calls=1, new_id=lambda: "a")
    for name in ("f", "g"):
        collector.begin_call(name)
        collector.arguments("{}")
    assert collector.num_calls == 2
    assert collector.take() == MessageDelta(tool_calls=(FIRST, REST)) and not collector.take()
