"""Special tokens: which ids end a generation, and finding token texts inside a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LITERAL_MARK = "\ufdd0\ufdd1"
"""Breaks a special token's text so that it stays text; dropped when the text is encoded. The two are Unicode
noncharacters, reserved for a program's internal use, so no text made for interchange contains them."""

# Ends of a turn or document under names that mean nothing else, whatever type the file gives them.
_END_NAMES = frozenset(
    [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|eot|>",
        "<|eom|>",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
        "[EOT]",
        "<|endofturn|>",
        "<|assistant_end|>",
        "<|role_end|>",
        "<|EOT|>",
    ]
)
# These may be ordinary text (in Gemma `</s>` is the HTML tag), so only a control token ends the generation.
_END_NAMES_IF_CONTROL = frozenset(["</s>", "<eos>", "<EOT>", "[EOS]", "<|eos|>"])


def named_end_ids(ids_by_text: Mapping[str, int], control_ids: frozenset[int]) -> frozenset[int]:
    """Ids whose names say that nothing more is to be generated, for files that declare only some of them.

    Args:
        ids_by_text: the vocabulary.
        control_ids: ids of control tokens, as declared.
    """
    ends = {ids_by_text[name] for name in _END_NAMES if name in ids_by_text}
    ends.update(ids_by_text[name] for name in _END_NAMES_IF_CONTROL if ids_by_text.get(name) in control_ids)
    if "<|return|>" in ids_by_text and "<|call|>" in ids_by_text:
        ends.discard(ids_by_text.get("<|end|>", -1))  # harmony: <|end|> closes a message, not the turn
    return frozenset(ends)


class TokenFinder:
    """Cuts text at the texts of given tokens, the longest token first, wherever it stands, as llama.cpp does.

    Tokens are grouped by their first characters, so that the thousands of `<unused12>` of some vocabularies
    cost one substring search as long as none occurs.

    Args:
        texts: token text to id.
        strip_right: ids that swallow the white space after them.
    """

    _PREFIX = 4
    _LARGE = 32

    def __init__(self, texts: Mapping[str, int], strip_right: frozenset[int] = frozenset()) -> None:
        self._ids = dict(texts)
        self._strip_right = strip_right
        self._groups: dict[str, set[str]] = {}
        for text in self._ids:
            if text:
                self._groups.setdefault(text[: self._PREFIX], set()).add(text)

    def present(self, text: str) -> list[str]:
        """The token texts that occur in `text`, the longest (in UTF-8 bytes) first."""
        found: set[str] = set()
        for prefix, group in self._groups.items():
            if prefix not in text:
                continue
            if len(group) <= self._LARGE:
                found.update(token for token in group if token in text)
                continue
            lengths = {len(token) for token in group}
            start = text.find(prefix)
            while start >= 0:
                found.update(group.intersection([text[start : start + length] for length in lengths]))
                start = text.find(prefix, start + 1)
        return sorted(found, key=lambda token: (-len(token.encode()), self._ids[token]))

    def split(self, text: str) -> list[str | int]:
        """Text pieces and token ids in order; no piece is empty."""
        pieces: list[str | int] = [text] if text else []
        for token in self.present(text):
            token_id = self._ids[token]
            strip = token_id in self._strip_right
            cut: list[str | int] = []
            for piece in pieces:
                if isinstance(piece, int) or token not in piece:
                    cut.append(piece)
                    continue
                first, *rest = piece.split(token)
                if first:
                    cut.append(first)
                for part in rest:
                    cut.append(token_id)
                    if strip:
                        part = part.lstrip(" \t\n\v\f\r")
                    if part:
                        cut.append(part)
            pieces = cut
        return pieces


def protect(text: str, tokens: Sequence[str]) -> str:
    """`text` with every occurrence of the tokens broken by LITERAL_MARK, so that it stays literal text.

    Args:
        tokens: of two or more characters each.
    """
    for token in tokens:
        while token in text:  # again, because occurrences may overlap
            text = text.replace(token, token[0] + LITERAL_MARK + token[1:])
    return text
