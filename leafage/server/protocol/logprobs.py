"""Log-probabilities in the two shapes of the OpenAI API: of chat completions, and of completions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from typing_extensions import TypedDict

from leafage.core.batch import SampledToken
from leafage.engine.output import LogprobDict
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


class TokenNames:
    """How answers write tokens; each is asked of the tokenizer once.

    Args:
        skips_special: special tokens leave nothing in the texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, skips_special: bool) -> None:
        self.tokenizer = tokenizer
        self.skips_special = skips_special
        self._named: dict[int, tuple[str, list[int] | None]] = {}
        self._texts: dict[int, str] = {}

    def of(self, token_id: int) -> tuple[str, list[int] | None]:
        """Its text, and its bytes; None for a special token that leaves none."""
        named = self._named.get(token_id)
        if named is None:
            hidden = self.skips_special and token_id in self.tokenizer.special_ids
            data = self.tokenizer.token_bytes(token_id)
            named = (data.decode(errors="replace"), None if hidden else list(data))
            self._named[token_id] = named
        return named

    def text(self, token_id: int) -> str:
        """Its text; `bytes:\\xf0\\x9f` for a part of a character, as OpenAI writes it."""
        text = self._texts.get(token_id)
        if text is None:
            data = self.tokenizer.token_bytes(token_id)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            self._texts[token_id] = text
        return text


def chat_logprobs(tokens: Iterable[SampledToken], num_top: int, names: TokenNames) -> ChatLogprobs:
    """Each token with its bytes and the `num_top` most likely ones."""
    content: list[PositionLogprob] = []
    for token in tokens:
        text, data = names.of(token.token_id)
        tops: list[TokenLogprob] = []
        for token_id, logprob in token.top[:num_top]:
            top_text, top_data = names.of(token_id)
            tops.append({"token": top_text, "logprob": finite(logprob), "bytes": top_data})
        content.append({"token": text, "logprob": finite(token.logprob), "bytes": data, "top_logprobs": tops})
    return {"content": content, "refusal": None}


class TextLogprobWriter:
    """Writes the older shape piece by piece. Offsets count the characters of the answer's text; a token that
    is a part of a character has that character's.

    Args:
        num_top: most likely tokens that are told besides the one that stands there.
        start: characters in front of the answer.
    """

    def __init__(self, names: TokenNames, num_top: int, start: int) -> None:
        self._names = names
        self._num_top = num_top
        self._offset = start
        self._text = names.tokenizer.detokenizer(skip_special_tokens=names.skips_special)

    def write(self, tokens: Iterable[SampledToken]) -> TextLogprobs:
        """The next tokens of the answer."""
        written: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        name = self._names.text
        for token in tokens:
            text = name(token.token_id)
            tops = {text: finite(token.logprob)}
            for token_id, logprob in token.top[: self._num_top]:
                tops.setdefault(name(token_id), finite(logprob))  # of one text the more likely token
            written["tokens"].append(text)
            written["token_logprobs"].append(finite(token.logprob))
            written["top_logprobs"].append(tops)
            written["text_offset"].append(self._offset)
            self._offset += len(self._text.push(token.token_id))
        return written

    def echo(
        self, token_ids: Sequence[int], positions: Sequence[LogprobDict | None], num_hidden: int
    ) -> TextLogprobs:
        """The tokens of the prompt, which stand in front of the answer's.

        Args:
            num_hidden: tokens that the tokenizer put in front of the text.
        """
        written: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        text = self._names.tokenizer.detokenizer(skip_special_tokens=False, continues=False)
        name = self._names.text
        offset = 0
        for number, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
            tops: dict[str, float] | None = None
            if position is not None:
                tops = {}
                for key, found in position.items():  # the token itself is the first
                    tops.setdefault(name(key), finite(found.logprob))
            written["tokens"].append(name(token_id))
            written["token_logprobs"].append(None if tops is None else tops[name(token_id)])
            written["top_logprobs"].append(tops)
            written["text_offset"].append(offset)
            if number >= num_hidden:
                offset += len(text.push(token_id))
        return written


def prompt_logprobs_json(positions: Iterable[LogprobDict | None]) -> list[dict[str, Any] | None]:
    """vLLM's extension: of each prompt token, None for the first."""
    return [
        None
        if position is None
        else {str(key): {**asdict(one), "logprob": finite(one.logprob)} for key, one in position.items()}
        for position in positions
    ]
