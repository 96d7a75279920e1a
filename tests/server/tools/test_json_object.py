"""JSON objects read while they are written, against the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.server.tools.json_object import JsonObject
from tests.server.tools.reading import splits

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)
WRITTEN = st.builds(json.dumps, OBJECTS, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
DAMAGED = st.builds(
    lambda text, at, new: text[: at % len(text)] + new + text[at % len(text) + 1 :],
    WRITTEN,
    st.integers(0, 200),
    st.sampled_from(["", *'{}[]",:\\tu1-.e \n']),
)


def read(pieces: list[str]) -> tuple[JsonObject, str]:
    """The reader, and what it left."""
    found = JsonObject()
    rest = ""
    for piece in pieces:
        rest = rest + piece if rest or found.is_complete or found.is_broken else piece[found.push(piece) :]
    return found, rest


@given(splits(WRITTEN))
def test_reads_any_object_in_any_pieces(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    found, rest = read([*pieces, " more"])
    expected = json.loads(text)
    assert found.is_complete and not found.is_broken and rest == " more"
    assert json.loads(found.text) == expected
    values = {key: json.loads(found.text[start:end]) for key, (start, end) in found.values.items()}
    assert values == expected and list(values) == list(expected)


@given(splits(DAMAGED))
def test_what_it_takes_is_json_and_what_it_refuses_is_not(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    found, rest = read(pieces)
    if found.is_complete:
        assert isinstance(json.loads(found.text), dict)
        assert json.loads(text[: len(text) - len(rest)], strict=False) == json.loads(found.text)
        return
    with pytest.raises(ValueError):
        json.loads(text, strict=False, object_pairs_hook=refuse_repeated)
    if found.is_broken:  # nothing that follows could mend it
        taken = text[: len(text) - len(rest)]
        for more in ('"}', "}", "]}", "1}", '":1}', "0}", "rue}", "alse}", "ull}"):
            with pytest.raises(ValueError):
                json.loads(taken + rest[:1] + more, strict=False, object_pairs_hook=refuse_repeated)


def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found


def test_control_characters_in_strings_are_escaped() -> None:
    found, rest = read(['{"a": "x\n', '\ty\x00"', "\n}"])
    assert rest == "" and found.text == '{"a": "x\\n\\ty\\u0000"\n}'
    assert json.loads(found.text) == {"a": "x\n\ty\0"}


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "{'a': 1}", '{"a": True}', "[1]", '{"a": 01 }', '{"a" 1}', '{"a": 1,}', "x"]
)
def test_breaks_where_json_does(text: str) -> None:
    found, _ = read(list(text))
    assert found.is_broken


def test_a_repeated_key_inside_a_value_is_json() -> None:
    found, _ = read(['{"a": {"b": 1, "b": 2}}'])
    assert found.is_complete


def test_deep_nesting_is_no_recursion() -> None:
    text = '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"
    found, rest = read([text])
    assert found.is_complete and rest == ""
