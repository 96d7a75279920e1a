"""Token ids of conversations, kept so that their next turn finds all of the last one in the prefix cache.

A client sends a conversation as text, and the chat template writes it out anew for each turn. Two things then
cost the cache the end of the last turn: templates that leave something of it out (Qwen 3's drops the thinking
of earlier turns), and answers whose text, encoded again, gives other tokens than the model had drawn. So a
session keeps the ids that were computed, and only what follows the last answer is written and encoded.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import CompletionOutput
from leafage.text.tokenizer import Tokenizer

MAX_SESSIONS = 10_000
MAX_BYTES = 64 << 20
TTL = 3600.0
"""Seconds for which a session is kept after its last answer."""

_BYTES_EACH = 1000
"""Of the objects around what is kept, roughly."""

K = TypeVar("K")
V = TypeVar("V")
Message = Mapping[str, Any]


class BoundedStore(Generic[K, V]):
    """A dict of what was used last: bounded in number, bytes and age. Threads may share it.

    Args:
        ttl: seconds after which an entry that was not put again is gone; None: it stays.
    """

    def __init__(
        self,
        max_entries: int,
        max_bytes: int,
        ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, int, float]] = OrderedDict()
        self._lock = threading.RLock()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if self._ttl is not None and self._clock() - entry[2] > self._ttl:
                self.remove(key)
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Keep a value instead of the key's old one; what was not used for longest makes room. One that is
        larger than all the room is not kept."""
        num_bytes += _BYTES_EACH
        with self._lock:
            self.remove(key)
            if num_bytes > self._max_bytes:
                return
            self._entries[key] = (value, num_bytes, self._clock())
            self.num_bytes += num_bytes
            while len(self._entries) > self._max_entries or self.num_bytes > self._max_bytes:
                self.remove(next(iter(self._entries)))

    def remove(self, key: K) -> bool:
        """Forget a key; False when it is not there."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.num_bytes -= entry[1]
        return entry is not None


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer, and the conversation up to it.

    Attributes:
        num_messages: of the conversation, the answer included.
        digest: of these messages and of what else the template writes.
        num_tokens: of the conversation, without the end of the answer's turn.
        rest: the end of the answer's text, where it ended inside a token.
    """

    num_messages: int
    digest: bytes
    num_tokens: int
    rest: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """The ids of a conversation and where its answers end. Each turn's ids begin with those of the last."""

    token_ids: array[int]
    turns: tuple[Turn, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.token_ids) * self.token_ids.itemsize + 200 * len(self.turns)

    def up_to(self, turn: Turn) -> list[int]:
        """The ids up to the end of an answer."""
        return self.token_ids[: turn.num_tokens].tolist()

    def latest_turn(self, digests: Sequence[bytes]) -> Turn | None:
        """The last answer that these messages contain.

        Args:
            digests: `digests_of` them.
        """
        for turn in reversed(self.turns):
            if turn.num_messages < len(digests) and digests[turn.num_messages] == turn.digest:
                return turn
        return None


def digests_of(messages: Sequence[Message], form: object) -> list[bytes]:
    """Digests of the first 0, 1, 2... messages, under a form.

    Args:
        form: what the template writes besides the messages, as JSON: tools, variables.
    """
    digests = [hashlib.sha256(_canonical(form)).digest()]
    for message in messages:
        digests.append(next_digest(digests[-1], message))
    return digests


def next_digest(digest: bytes, message: Message) -> bytes:
    """With one message more. Of the assistant's answers whitespace around the content does not count, nor do
    fields that clients drop from them or add to them."""
    return hashlib.sha256(digest + _canonical(_told(message))).digest()


def _told(message: Message) -> dict[str, Any]:
    told = {key: value for key, value in message.items() if value is not None}
    if told.get("role") == "assistant":
        told = {key: told[key] for key in ("role", "name", "content", "tool_calls") if told.get(key)}
        parts = told.get("content", "")
        if isinstance(parts, list):
            parts = "\n".join(part if isinstance(part, str) else part["text"] for part in parts)
        told["content"] = parts.strip()
    return told


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def continued(
    before: Conversation | None,
    turn: Turn | None,
    prompt_token_ids: Sequence[int],
    answer: CompletionOutput,
    digests: Sequence[bytes],
    tokenizer: Tokenizer,
    params: SamplingParams,
) -> Conversation:
    """What is to be kept after an answer.

    Args:
        before, turn: what was kept, and the turn after which the prompt went on; None: it began anew.
        answer: the whole of it.
        digests: of the prompt's messages and the answer.
        params: with which it was made.
    """
    token_ids, rest = _kept_of(answer, tokenizer, params)
    ids = array("i", [*prompt_token_ids, *token_ids])
    new = Turn(len(digests) - 1, digests[-1], len(ids), rest)
    earlier: tuple[Turn, ...] = ()
    if before is not None and turn is not None:
        earlier = before.turns[: before.turns.index(turn) + 1]
    return Conversation(ids, (*earlier, new))


def _kept_of(answer: CompletionOutput, tokenizer: Tokenizer, params: SamplingParams) -> tuple[list[int], str]:
    """The ids of an answer without what ended it, and the text that they lack where a stop string began
    inside a token."""
    ids, reason = answer.token_ids, answer.stop_reason
    if answer.finish_reason != "stop":
        return ids, ""
    if not isinstance(reason, str):  # the template writes the end of a turn itself
        is_told = reason is not None and params.include_stop_str_in_output
        return ids if is_told else ids[:-1], ""
    stream = tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
    text, num_ids, num_chars, done = answer.text, 0, 0, 0
    for number, token_id in enumerate(ids, start=1):
        piece = stream.push(token_id)
        if not text.startswith(piece, done):
            break
        done += len(piece)
        if piece and not stream.is_inside_character:
            num_ids, num_chars = number, done
    return ids[:num_ids], text[num_chars:]
