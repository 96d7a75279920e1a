"""Where a text can be cut before tokenization without changing the result.

A token that spans the place between two characters has these two as neighbours. So where the pair occurs in
no token of the vocabulary, no token spans the place, and both sides are tokenized independently. That turns
one long search into many short ones that can be remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

_CACHE_ENTRIES = 65536
_CACHED_LENGTH = 32
_SEPARATOR = "\ufdd2"  # a noncharacter: pairs with it only ever cut less


class Bonds:
    """The pairs of neighbouring characters inside the tokens of a vocabulary.

    Args:
        tokens: all texts that may become one token.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        joined = _SEPARATOR.join(tokens)
        pairs = np.unique(_neighbours(joined)) if len(joined) > 1 else np.empty(0, np.uint64)
        self._pairs = pairs if len(pairs) else np.zeros(1, np.uint64)

    def cut(self, text: str) -> list[str]:
        """The pieces of `text`, in order."""
        if len(text) < 2:
            return [text] if text else []
        pairs = _neighbours(text)
        at = np.searchsorted(self._pairs, pairs)
        at[at == len(self._pairs)] = 0
        cuts = (np.nonzero(self._pairs[at] != pairs)[0] + 1).tolist()
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class ChunkCache:
    """Ids of a text, piece by piece, remembering short pieces.

    Args:
        bonds: where to cut.
        encode_piece: ids of one piece.
    """

    def __init__(self, bonds: Bonds, encode_piece: Callable[[str], list[int]]) -> None:
        self._bonds = bonds
        self._encode_piece = encode_piece
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of all pieces of `text`."""
        ids: list[int] = []
        known = self._known
        for piece in self._bonds.cut(text):
            piece_ids = known.get(piece)
            if piece_ids is None:
                piece_ids = self._encode_piece(piece)
                if len(piece) <= _CACHED_LENGTH:
                    if len(known) >= _CACHE_ENTRIES:
                        known.clear()
                    known[piece] = piece_ids
            ids += piece_ids
        return ids


def _neighbours(text: str) -> np.ndarray:
    """[len(text) - 1] uint64: each pair of neighbouring characters as one number."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    pairs: np.ndarray = points[:-1] << np.uint64(32) | points[1:]
    return pairs
