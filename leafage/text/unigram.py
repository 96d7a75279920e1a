"""SentencePiece unigram tokenization: the segmentation with the best sum of scores (Kudo 2018), and its
normalizer.

Verified against llama.cpp's `t5` tokenizer; no byte fallback, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leafage.errors import ModelFileError
from leafage.text.bonds import Bonds, ChunkCache

SPACE_MARK = "▁"
_UNKNOWN_PENALTY = 10.0


class Charsmap:
    """A `precompiled_charsmap`: replacements for the longest matching prefixes, in a double-array trie.

    Layout (SentencePiece, Darts-clone): uint32 size of the trie in bytes, the trie as uint32 units, then
    the replacement strings, each ended by a zero byte. A unit holds the offset to its children (bits 10-30,
    scaled by 256 if bit 9 is set), whether a value hangs below it (bit 8) and its own label (bits 0-7).

    Args:
        blob: the bytes from the model file; b"" maps nothing.

    Raises:
        ModelFileError: the sizes inside do not fit the blob.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little") if blob else 0
        if size % 4 or (blob and 4 + size >= len(blob)):
            raise ModelFileError(
                "precompiled_charsmap is truncated",
                value=f"{len(blob)} bytes",
                limit=f"more than {4 + size} bytes",
                remedy="fetch or convert the model again",
            )
        self._units: list[int] = np.frombuffer(blob[4 : 4 + size], "<u4").tolist()
        self._replacements = blob[4 + size :]
        # A character whose first byte starts no entry is copied without a walk.
        self._first = {byte for byte in range(1, 256) if self._child(self._offset(0), byte) is not None}

    def normalize(self, text: str) -> str:
        """`text` with every longest matching prefix replaced, left to right."""
        if not self._units:
            return text
        data = text.encode()
        result = bytearray()
        position = 0
        while position < len(data):
            length, replacement = self._longest(data, position) if data[position] in self._first else (0, b"")
            if length:
                result += replacement
                position += length
                continue
            start = position
            position += 1
            while position < len(data) and data[position] & 0xC0 == 0x80:
                position += 1
            result += data[start:position]
        return result.decode(errors="replace")

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        length, value = 0, 0
        node = self._offset(0)
        for position in range(start, len(data)):
            child = self._child(node, data[position])
            if child is None:
                break
            node = child ^ self._offset(child)
            if self._units[child] >> 8 & 1:
                length = position - start + 1
                value = self._units[node] & 0x7FFFFFFF if node < len(self._units) else len(self._replacements)
        if not length:
            return 0, b""
        end = self._replacements.find(b"\0", value)
        if end < 0:
            raise ModelFileError("precompiled_charsmap points outside itself", remedy="fetch the model again")
        return length, self._replacements[value:end]

    def _offset(self, node: int) -> int:
        unit = self._units[node] if node < len(self._units) else 0
        return unit >> 10 << ((unit & 0x200) >> 6)

    def _child(self, base: int, byte: int) -> int | None:
        child = base ^ byte
        if byte == 0 or child >= len(self._units) or self._units[child] & 0x800000FF != byte:
            return None
        return child


class UnigramEncoder:
    """Text to ids by the best-scored segmentation.

    Args:
        pieces: token text to id, of the tokens that may be used.
        scores: score per id (log probabilities).
        lowest_score: of the ordinary tokens; a character in no token costs more than any of them.
        unknown_id: the id of one or more characters in a row that are in no token.
        charsmap: normalizes the text first.
        add_space: put a space in front of the text.
        merge_spaces: reduce runs of spaces to one, drop those at the end, and put one in front of every word.
    """

    def __init__(
        self,
        pieces: dict[str, int],
        scores: Sequence[float],
        lowest_score: float,
        unknown_id: int,
        charsmap: Charsmap,
        *,
        add_space: bool,
        merge_spaces: bool,
    ) -> None:
        self._ids = pieces
        self._scores = scores
        self._unknown_id = unknown_id
        self._unknown_score = lowest_score - _UNKNOWN_PENALTY
        self._charsmap = charsmap
        self._add_space = add_space
        self._merge_spaces = merge_spaces
        self._longest: dict[str, int] = {}  # first character -> length of the longest token
        for text in pieces:
            if len(text) > self._longest.get(text[0], 0):
                self._longest[text[0]] = len(text)
        self._chunks = ChunkCache(Bonds(pieces), self._best)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        text = self._charsmap.normalize(text)
        if self._merge_spaces:
            text = "".join([" " + word for word in text.split(" ") if word])
        elif self._add_space:
            # before the first character that is no space
            stripped = text.lstrip(" ")
            text = text[: len(text) - len(stripped)] + " " + stripped if stripped else text
        ids = self._chunks.encode(text.replace(" ", SPACE_MARK))
        unknown = self._unknown_id
        if unknown in ids:  # neighbouring unknowns are one
            ids = [token for i, token in enumerate(ids) if token != unknown or not i or ids[i - 1] != unknown]
        return ids

    def _best(self, piece: str) -> list[int]:
        """Viterbi over the ends of tokens: best[i] is the best score of a segmentation of piece[:i]."""
        ids, scores, longest = self._ids, self._scores, self._longest
        size = len(piece)
        best = [float("-inf")] * (size + 1)
        best[0] = 0.0
        came_from: list[tuple[int, int]] = [(0, self._unknown_id)] * (size + 1)
        for start in range(size):
            here = best[start]
            for end in range(start + 1, min(size, start + longest.get(piece[start], 0)) + 1):
                token = ids.get(piece[start:end])
                if token is not None and here + scores[token] > best[end]:
                    best[end] = here + scores[token]
                    came_from[end] = start, token
            if piece[start] not in ids and here + self._unknown_score > best[start + 1]:
                best[start + 1] = here + self._unknown_score
                came_from[start + 1] = start, self._unknown_id
        result: list[int] = []
        end = size
        while end:
            end, token = came_from[end]
            result.append(token)
        return result[::-1]
