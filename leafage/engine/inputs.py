"""From what users write to what the engine takes: prompts to token ids, bad words to token-id sequences."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, Protocol

from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError

Prompt = str | SequenceOf[int] | Mapping[str, Any]
"""A text, token ids, or a dict with "prompt" or "prompt_token_ids" and, if wanted, "cache_salt" (prefixes are
shared only with prompts of the same salt) and "tenant" (whom the policy `fair` charges; default the salt)."""


class TextEncoder(Protocol):
    """What the input side needs of a tokenizer."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...


@dataclass(slots=True)
class NewRequest:
    """A request as the engine's thread takes it."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    priority: int = 0
    cache_salt: str = ""
    tenant: str | None = None


class InputProcessor:
    """Encodes prompts and parameters. Safe to call from any thread.

    Special tokens that are written out in a prompt text are parsed, as vLLM does: such a prompt is the
    caller's own. (Chat messages are a user's, and there they stay text.)
    """

    def __init__(self, tokenizer: TextEncoder) -> None:
        self._tokenizer = tokenizer

    def request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, priority: int = 0
    ) -> NewRequest:
        """Raises InvalidParameterError for a prompt of another kind than `Prompt`, or a priority that is no
        integer."""
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidParameterError("priority must be an integer", value=repr(priority))
        text: str | None = None
        salt, tenant = "", None
        ids: object = prompt
        if isinstance(prompt, Mapping):
            unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids", "cache_salt", "tenant"})
            if unknown:
                raise InvalidParameterError(
                    "unknown key in a prompt dict",
                    value=unknown[0],
                    limit="prompt, prompt_token_ids, cache_salt, tenant",
                )
            salt, tenant = prompt.get("cache_salt", ""), prompt.get("tenant")
            if not isinstance(salt, str):
                raise InvalidParameterError("cache_salt must be a string", value=repr(salt))
            if tenant is not None and not isinstance(tenant, str):
                raise InvalidParameterError("tenant must be a string", value=repr(tenant))
            if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
                raise InvalidParameterError('a prompt dict needs either "prompt" or "prompt_token_ids"')
            ids = prompt.get("prompt_token_ids", prompt.get("prompt"))
            if "prompt" in prompt and not isinstance(ids, str):
                raise InvalidParameterError("prompt must be a string", value=repr(ids))
        if isinstance(ids, str):
            text = ids
            token_ids = self._tokenizer.encode(text, parse_special=True)
        else:
            token_ids = _token_ids(ids)
        return NewRequest(request_id, token_ids, self.with_bad_words(params), text, priority, salt, tenant)

    def prefix(self, prompt: Prompt, *, cache_salt: str = "", priority: int = 0) -> NewRequest:
        """A prefix to pin: token ids, priority and cache salt of the result count.

        Raises InvalidParameterError as `request`, and for two different salts.
        """
        if not isinstance(cache_salt, str):
            raise InvalidParameterError("cache_salt must be a string", value=repr(cache_salt))
        new = self.request("", prompt, SamplingParams(), priority=priority)
        if cache_salt and new.cache_salt not in ("", cache_salt):
            raise InvalidParameterError(
                "cache_salt is given twice",
                value=f"{new.cache_salt} and {cache_salt}",
                remedy="give it in the prompt or as the argument",
            )
        new.cache_salt = cache_salt or new.cache_salt
        return new

    def with_bad_words(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the token ids of `bad_words` added: each word at the start of a text and
        after a space, where that gives other tokens."""
        if not params.bad_words:
            return params
        sequences = [tuple(ids) for ids in params.bad_words_token_ids]
        for word in params.bad_words:
            bare = self._encode_word(word.lstrip())
            spaced = self._encode_word(" " + word.lstrip())
            if not bare and not spaced:
                raise InvalidParameterError("bad_words: one has no tokens", value=word)
            for ids in (bare, spaced):
                if ids and ids not in sequences:
                    sequences.append(ids)
        return replace(params, bad_words_token_ids=tuple(sequences))

    def _encode_word(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special=False))


def _token_ids(values: object) -> list[int]:
    """A list of Python ints from any sequence of integers (lists, tuples, NumPy arrays)."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Iterable):
        raise InvalidParameterError(
            "a prompt must be a string, a sequence of token ids or a dict", value=repr(values)
        )
    ids: list[int] = []
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidParameterError("prompt token ids must be integers", value=repr(value))
        ids.append(operator.index(value))
    return ids
