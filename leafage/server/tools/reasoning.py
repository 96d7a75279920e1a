"""The reasoning of thinking models: `<think>...</think>` in front of the answer."""

from __future__ import annotations

from collections.abc import Iterable

from leafage.server.tools.parser import partial_suffix

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class ReasoningSplitter:
    """Splits an answer into reasoning and the rest, as it comes. The result does not depend on how the text
    was split.

    Reasoning begins with the tag at the very start of the answer, or at once where the prompt has opened it
    already; it ends with the closing tag, or never. Whitespace around it belongs to neither side. Later tags,
    and a closing one that nothing opened, are content.

    Args:
        is_open: the prompt ends inside the tag.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._buffer = ""
        self._state = "inside" if is_open else "before"
        self._has_begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Go on with the text. Returns what is new of the reasoning and of the rest."""
        if self._state == "behind":
            return "", text
        self._buffer += text
        reasoning = ""
        if self._state == "before" and not self._find_open():
            return "", self._rest()
        if self._state == "inside":
            reasoning = self._take_reasoning()
        return reasoning, self._rest()

    def finish(self) -> tuple[str, str]:
        """The answer has ended."""
        text, self._buffer = self._buffer, ""
        if self._state == "inside":
            return text.rstrip() if self._has_begun else text.strip(), ""
        return "", text if self._state == "before" else ""

    def _find_open(self) -> bool:
        """Whether the tag has opened. If it no longer can, the answer has none."""
        text = self._buffer.lstrip()
        if text.startswith(THINK_OPEN):
            self._buffer = text[len(THINK_OPEN) :]
            self._state = "inside"
            return True
        if not THINK_OPEN.startswith(text):
            self._state = "behind"
        return False

    def _take_reasoning(self) -> str:
        """What is sure to be reasoning. Whitespace is kept back while the closing tag may follow."""
        text = self._buffer if self._has_begun else self._buffer.lstrip()
        index = text.find(THINK_CLOSE)
        if index >= 0:
            self._buffer = text[index + len(THINK_CLOSE) :]
            self._state = "between"
            return text[:index].rstrip()
        end = len(text[: len(text) - partial_suffix(text, THINK_CLOSE)].rstrip())
        self._buffer = text[end:]
        self._has_begun = self._has_begun or end > 0
        return text[:end]

    def _rest(self) -> str:
        """What follows the reasoning, without the whitespace in front of it."""
        if self._state == "between":
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "behind"
        if self._state != "behind":
            return ""
        text, self._buffer = self._buffer, ""
        return text


def count_reasoning(pieces: Iterable[str], *, is_open: bool) -> int:
    """How many tokens of an answer are reasoning, its tags included.

    Args:
        pieces: what each token adds to the text.
        is_open: the prompt ends inside the tag.
    """
    splitter = ReasoningSplitter(is_open=is_open)
    count, found = 0, is_open
    for piece in pieces:
        reasoning, rest = splitter.push(piece)
        found = found or bool(reasoning)
        if rest:
            break
        count += 1
    return count if found else 0


def opens_reasoning(prompt_end: str) -> bool:
    """Whether a prompt ends inside the tag. A template that switches thinking off closes it again."""
    return prompt_end.rstrip().endswith(THINK_OPEN)
