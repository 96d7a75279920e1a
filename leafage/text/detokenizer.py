"""Ids to text, one token at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class PieceTable:
    """Bytes and text of every token, computed when first asked for.

    Args:
        num_tokens: size of the vocabulary.
        token_bytes: bytes of one id as they stand in a text.
    """

    def __init__(self, num_tokens: int, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._bytes: list[bytes | None] = [None] * num_tokens
        # text of tokens that are whole characters by themselves; "" also for tokens without text
        self.texts: list[str | None] = [None] * num_tokens

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token; b"" for an id outside the vocabulary (models pad their output layer)."""
        if not 0 <= token_id < len(self._bytes):
            return b""
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._token_bytes(token_id)
            if _is_whole(data):
                self.texts[token_id] = data.decode()
        return data


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Detokenizer:
    """Turns a stream of ids into a stream of text.

    `push` returns the text that became certain with this token: "" while the bytes of a character are
    incomplete. The concatenation of all pushes and of `flush` is `Tokenizer.decode` of all ids.

    Args:
        pieces: the vocabulary's piece table.
        skip: ids that leave no text.
        strip_space: drop one space at the very beginning (the one the encoder put there).
    """

    __slots__ = ("_pending", "_pieces", "_skip", "_strip", "_texts")

    def __init__(self, pieces: PieceTable, skip: frozenset[int], *, strip_space: bool = False) -> None:
        self._pieces = pieces
        self._texts = pieces.texts
        self._skip = skip
        self._strip = strip_space
        self._pending = b""

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        if token_id in self._skip:
            return ""
        if not self._pending and not self._strip and 0 <= token_id < len(self._texts):
            text = self._texts[token_id]
            if text is not None:
                return text
        data = self._pieces.bytes_of(token_id)
        if self._strip and data:
            self._strip = False
            if data[:1] == b" ":
                data = data[1:]
        data = self._pending + data
        # Not final: bytes that the next ones may still complete are left out; hopeless ones become U+FFFD.
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    @property
    def is_inside_character(self) -> bool:
        """Whether bytes of an incomplete character wait for the next token."""
        return bool(self._pending)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """`push` over several ids."""
        return "".join([self.push(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """The rest: U+FFFD where the stream ended inside a character, else ""."""
        pending, self._pending = self._pending, b""
        return pending.decode(errors="replace")

    def copy(self) -> Detokenizer:
        """An independent detokenizer at the same place of the stream (for a fork)."""
        twin = Detokenizer(self._pieces, self._skip, strip_space=self._strip)
        twin._pending = self._pending
        return twin
