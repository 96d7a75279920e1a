"""Text of a sequence as its tokens come: detokenized, cut at stop strings, held back while in doubt."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import lru_cache
from typing import Protocol

from leafage.core.request import FinishKind, FinishReason, Sequence
from leafage.errors import RequestError


class Detokenizer(Protocol):
    """Incremental: whole characters only. `leafage.text` has the real one."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...
    def copy(self) -> Detokenizer: ...


@lru_cache(maxsize=1024)
def _failure_table(pattern: str) -> tuple[int, ...]:
    """Knuth, Morris, Pratt (1977): table[k] is the longest proper border of the first k characters."""
    table = [0, 0]
    border = 0
    for k in range(1, len(pattern)):
        while border and pattern[k] != pattern[border]:
            border = table[border]
        if pattern[k] == pattern[border]:
            border += 1
        table.append(border)
    return tuple(table)


class StopMatcher:
    """Finds the first stop string to be complete in a text that arrives in pieces.

    Linear in the text whatever the strings are. Where a piece of text begins makes no difference, so the
    result does not depend on how the text was cut into tokens. Of several strings that end at the same
    character the longest wins.
    """

    __slots__ = ("_first", "_patterns", "_states", "num_open")

    def __init__(self, stops: SequenceOf[str]) -> None:
        self._patterns = [(stop, _failure_table(stop)) for stop in stops]
        self._first = frozenset(stop[0] for stop in stops)
        self._states = [0] * len(self._patterns)
        self.num_open = 0
        """Characters at the end of the text that may be the beginning of a stop string."""

    def scan(self, piece: str, *, enabled: bool = True) -> tuple[int, str] | None:
        """Feed a piece. Returns (characters of the piece up to the end of the match, stop string) or None.

        With `enabled` false a match in this piece does not count, but what it begins still does.
        """
        if not self.num_open and self._first.isdisjoint(piece):
            return None
        states = self._states
        for offset, char in enumerate(piece):
            found = ""
            for i, (pattern, table) in enumerate(self._patterns):
                state = states[i]
                while state and pattern[state] != char:
                    state = table[state]
                if pattern[state] == char:
                    state += 1
                    if state == len(pattern):
                        if enabled and len(pattern) > len(found):
                            found = pattern
                        state = table[state]
                states[i] = state
            if found:
                return offset + 1, found
        self.num_open = max(states)
        return None

    def copy(self) -> StopMatcher:
        """An independent matcher at the same place of the text."""
        twin = object.__new__(StopMatcher)
        twin._patterns, twin._first = self._patterns, self._first
        twin._states, twin.num_open = self._states[:], self.num_open
        return twin


class TextStream:
    """The text of one sequence.

    Text is released by `take` as soon as it is certain: whole characters that cannot become part of a stop
    string. So pieces taken while the sequence runs, joined, are the text of the finished sequence.

    Args:
        detokenizer: fresh, for this sequence alone.
        stops: stop strings.
        include_stop: keep the stop string in the text.
        min_tokens: a stop string counts only when its end comes with a later token than this many.
    """

    __slots__ = (
        "_detokenizer",
        "_held",
        "_include_stop",
        "_matcher",
        "_min_tokens",
        "_ready",
        "num_tokens",
        "stop",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: SequenceOf[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""
        self._ready: list[str] = []
        self.num_tokens = 0
        self.stop: str | None = None
        """The stop string that ended the text."""

    def push(self, token_id: int) -> str | None:
        """Append a token; returns the stop string that it completed, if any. Nothing may follow that."""
        self.num_tokens += 1
        piece = self._detokenizer.push(token_id)
        matcher = self._matcher
        if matcher is None:
            self._ready.append(piece)
            return None
        found = matcher.scan(piece, enabled=self.num_tokens > self._min_tokens)
        text = self._held + piece
        if found is None:
            certain = len(text) - matcher.num_open
            self._ready.append(text[:certain])
            self._held = text[certain:]
            return None
        end, stop = found
        end += len(self._held)
        self._ready.append(text[: end if self._include_stop else end - len(stop)])
        self._held = ""
        self.stop = stop
        return stop

    def finish(self, stop_token_id: int | None = None) -> None:
        """No more tokens: release what was held back.

        Args:
            stop_token_id: the token that ended the sequence; its text counts as a stop string's.
        """
        if self.stop is not None:
            return
        last = ""
        if stop_token_id is not None and self._include_stop:
            last = self._detokenizer.push(stop_token_id)
        self._ready.append(self._held + last + self._detokenizer.flush())
        self._held = ""

    def would_stop(self, token_id: int) -> str | None:
        """The stop string that this token would complete, if any; nothing changes."""
        if self._matcher is None:
            return None
        piece = self._detokenizer.copy().push(token_id)
        found = self._matcher.copy().scan(piece, enabled=self.num_tokens >= self._min_tokens)
        return None if found is None else found[1]

    def take(self) -> str:
        """Text released since the last call."""
        text = self._ready[0] if len(self._ready) == 1 else "".join(self._ready)
        self._ready.clear()
        return text


class _BeamTexts:
    """The texts of a request's beams, by seq_id.

    A text follows its sequence's tokens; that of a forked beam begins with its first one, so with stop
    strings a search costs the square of its length.
    """

    def __init__(self, new_text: Callable[[], TextStream]) -> None:
        self._new_text = new_text
        self._texts: dict[int, TextStream] = {}

    def would_stop(self, beam: Sequence, token_id: int) -> str | None:
        text = self._texts.get(beam.seq_id)
        if text is None:
            if len(self._texts) > 2 * len(beam.gang):
                running = {seq.seq_id for seq in beam.gang}
                self._texts = {seq_id: text for seq_id, text in self._texts.items() if seq_id in running}
            text = self._texts[beam.seq_id] = self._new_text()
        for new in beam.tokens[beam.num_prompt_tokens + text.num_tokens :]:
            text.push(new)
        text.take()
        return text.would_stop(token_id)


class StopStringCheck:
    """`core.StopCheck` over the texts of the requests that have stop strings."""

    def __init__(self) -> None:
        self._texts: dict[str, SequenceOf[TextStream] | _BeamTexts] = {}

    def watch(self, request_id: str, texts: SequenceOf[TextStream]) -> None:
        """`texts[i]` belongs to the request's sequence of index i."""
        self._texts[request_id] = texts

    def watch_beams(self, request_id: str, new_text: Callable[[], TextStream]) -> None:
        """The same for a beam search: its candidates are asked about, its texts are made here."""
        self._texts[request_id] = _BeamTexts(new_text)

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def finished(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Why the sequence ends with this token. A fault here ends this sequence and no other."""
        texts = self._texts.get(sequence.request_id)
        if texts is None:
            return None
        try:
            if isinstance(texts, _BeamTexts):
                stop = texts.would_stop(sequence, token_id)
            else:
                stop = texts[sequence.index].push(token_id)
        except Exception as error:
            return FinishReason(FinishKind.ERROR, error=output_error(error))
        return None if stop is None else FinishReason(FinishKind.STOP, stop)


def output_error(error: Exception) -> RequestError:
    """What a request ends with when its output side fails."""
    failed = RequestError(
        f"the output could not be processed: {type(error).__name__}: {error}",
        remedy="please report this as a bug of Leafage",
    )
    failed.__cause__ = error
    return failed
