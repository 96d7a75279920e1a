"""Typed reading of model metadata: a missing or impossible value is refused by name, never guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leafage.errors import ModelFileError, UnsupportedError

MAX_INTEGER = 1 << 31
"""Above every size that a model can have; keeps a corrupt file from asking for a huge allocation."""


class Fields:
    """Values of a model's metadata, by key.

    Args:
        values: GGUF metadata or (a part of) config.json.
        where: what to call them in errors, such as "GGUF metadata".
        prefix: put before every key, such as "llama.".
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self.where = where
        self.prefix = prefix

    def has(self, key: str) -> bool:
        return self._values.get(self.prefix + key) is not None

    def get(self, key: str) -> Any:
        """The value as it is, None when absent."""
        return self._values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        value = self._value(key, default)
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if not ok or not math.isfinite(value) or value != int(value) or not at_least <= value < MAX_INTEGER:
            raise self._bad(key, value, f"an integer from {at_least} to {MAX_INTEGER - 1}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if not ok or not 0 < value < math.inf:
            raise self._bad(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value

    def section(self, key: str) -> Fields:
        """The object under `key`; empty when absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._bad(key, value, "an object")
        return Fields(value or {}, f"{self.where}, {self.prefix}{key}")

    def refuse(self, key: str, why: str) -> None:
        """UnsupportedError when the key is there with a value that is neither null, false, 0 nor empty."""
        value = self.get(key)
        if value is not None and value is not False and value != 0 and value not in ("", [], {}):
            raise UnsupportedError(f"{self.where}: {self.prefix}{key} ({why}) is not supported", value=value)

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"{self.where}: {self.prefix}{key} is missing")
        return value

    def _bad(self, key: str, value: Any, limit: str) -> ModelFileError:
        return ModelFileError(f"{self.where}: bad {self.prefix}{key}", value=value, limit=limit)


def gguf_fields(metadata: Mapping[str, Any], architecture: str) -> Fields:
    return Fields(metadata, "GGUF metadata", f"{architecture}.")


def gguf_vocab_size(metadata: Mapping[str, Any], fields: Fields) -> int:
    """Tokens in the vocabulary; files without a tokenizer may declare the number."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if tokens is not None and len(tokens) else fields.integer("vocab_size")


def hf_fields(config: Mapping[str, Any]) -> Fields:
    return Fields(config, "config.json")
