"""Log-probabilities in the two shapes of the OpenAI API: of chat completions, and of completions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from typing_extensions import TypedDict

from leafage.engine.output import Logprob, LogprobDict
from leafage.text.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""JSON has no -inf; the OpenAI API says -9999 instead."""


class TokenLogprob(TypedDict):
    """A token, its log-probability and its bytes: null for a special token, which leaves none in the text."""

    token: str
    logprob: float
    bytes: list[int] | None


class PositionLogprob(TokenLogprob):
    """The token of a position, and the most likely ones there."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """Of the tokens of an answer."""

    content: list[PositionLogprob]
    refusal: None


class TextLogprobs(TypedDict):
    """The older shape: lists with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry; NaN counts as the lowest."""
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


class LogprobWriter:
    """Writes the log-probabilities of one request's answers.

    Args:
        skips_special: special tokens leave nothing in the texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._bytes: dict[int, list[int] | None] = {}

    def chat(self, positions: Iterable[LogprobDict], num_top: int) -> ChatLogprobs:
        """Each token with its bytes and the `num_top` most likely ones."""
        content: list[PositionLogprob] = []
        for position in positions:
            found = list(position.items())
            token_id, own = found[0]
            best = sorted(found, key=lambda one: one[1].rank)[:num_top] if num_top else []
            content.append(
                {
                    "token": own.decoded_token,
                    "logprob": finite(own.logprob),
                    "bytes": self._bytes_of(token_id),
                    "top_logprobs": [self._entry(*one) for one in best],
                }
            )
        return {"content": content, "refusal": None}

    def texts(self, start: int = 0) -> TextLogprobWriter:
        """A writer of the older shape, for one answer that begins at a character of its text."""
        return TextLogprobWriter(self._tokenizer, start, skips_special=self._skips_special)

    def _entry(self, token_id: int, found: Logprob) -> TokenLogprob:
        return {
            "token": found.decoded_token,
            "logprob": finite(found.logprob),
            "bytes": self._bytes_of(token_id),
        }

    def _bytes_of(self, token_id: int) -> list[int] | None:
        try:
            return self._bytes[token_id]
        except KeyError:
            hidden = self._skips_special and token_id in self._tokenizer.special_ids
            found = None if hidden else list(self._tokenizer.token_bytes(token_id))
            self._bytes[token_id] = found
            return found


class TextLogprobWriter:
    """Writes the older shape piece by piece. Offsets count the characters of the answer's text; a token that
    is a part of a character has that character's, and is written `bytes:\\xf0\\x9f`, as OpenAI does."""

    def __init__(self, tokenizer: Tokenizer, start: int, *, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._offset = start
        self._text = tokenizer.detokenizer(skip_special_tokens=skips_special)

    def write(self, positions: Iterable[LogprobDict]) -> TextLogprobs:
        """The next tokens of the answer."""
        written: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for position in positions:
            self._write(written, position)
        return written

    def echo(
        self, token_ids: Sequence[int], positions: Sequence[LogprobDict | None], num_hidden: int
    ) -> TextLogprobs:
        """The tokens of the prompt, which stand in front of the answer's.

        Args:
            num_hidden: tokens that the tokenizer put in front of the text.
        """
        written: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        text = self._tokenizer.detokenizer(skip_special_tokens=False, continues=False)
        offset = 0
        for number, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
            written["tokens"].append(self._name(token_id))
            written["token_logprobs"].append(
                None if position is None else finite(next(iter(position.values())).logprob)
            )
            written["top_logprobs"].append(None if position is None else self._top(position))
            written["text_offset"].append(offset)
            if number >= num_hidden:
                offset += len(text.push(token_id))
        return written

    def _write(self, written: TextLogprobs, position: LogprobDict) -> None:
        token_id, own = next(iter(position.items()))
        written["tokens"].append(self._name(token_id))
        written["token_logprobs"].append(finite(own.logprob))
        written["top_logprobs"].append(self._top(position))
        written["text_offset"].append(self._offset)
        self._offset += len(self._text.push(token_id))

    def _top(self, position: LogprobDict) -> dict[str, float]:
        """By text. Of two tokens with one text the more likely is told, the own one always."""
        top: dict[str, float] = {}
        for token_id, found in position.items():
            top.setdefault(self._name(token_id), finite(found.logprob))
        return top

    def _name(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprobs_json(positions: Iterable[LogprobDict | None]) -> list[dict[str, Any] | None]:
    """vLLM's extension: of each prompt token, None for the first."""
    return [
        None
        if position is None
        else {str(key): {**asdict(one), "logprob": finite(one.logprob)} for key, one in position.items()}
        for position in positions
    ]
