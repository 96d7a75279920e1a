"""Metadata is read with its type and range, or refused by its full name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leafage.errors import ModelFileError, UnsupportedError
from leafage.models.fields import Fields, gguf_vocab_size


def test_values_come_back_with_their_type() -> None:
    fields = Fields({"a.n": 3, "a.x": 2, "a.on": False, "a.s": "t", "a.o": {"k": 1}}, "file", "a.")
    assert fields.integer("n") == 3 and fields.integer("missing", 7) == 7
    assert fields.number("x") == 2.0 and isinstance(fields.number("x"), float)
    assert fields.flag("on", True) is False and fields.text("s") == "t"
    assert fields.section("o").integer("k") == 1
    assert not fields.section("none").has("k")


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", float("inf"), 1 << 40, np.array([1, 2]), [1]])
def test_no_integer_from_anything_else(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"file: bad a\.n; .*an integer from 1"):
        Fields({"a.n": value}, "file", "a.").integer("n")


def test_null_counts_as_absent() -> None:
    fields = Fields({"n": None}, "file")
    assert not fields.has("n") and fields.integer("n", 5) == 5
    with pytest.raises(ModelFileError, match="file: n is missing"):
        fields.integer("n")


def test_refuse_lets_off_what_says_no() -> None:
    for nothing in (None, False, 0, "", [], {}):
        Fields({"x": nothing}, "file").refuse("x", "why")
    with pytest.raises(UnsupportedError, match=r"file: x \(why\) is not supported; got 2"):
        Fields({"x": 2}, "file").refuse("x", "why")


def test_vocabulary_is_the_tokenizers_before_the_declared() -> None:
    fields = Fields({"a.vocab_size": 9}, "GGUF metadata", "a.")
    assert gguf_vocab_size({"tokenizer.ggml.tokens": ["x"] * 8}, fields) == 8
    assert gguf_vocab_size({}, fields) == 9
