"""SentencePiece-style byte-pair encoding, driven by token scores.

A GGUF file with `tokenizer.ggml.model = llama` has scores and no merge list: any two neighbours whose
concatenation is a token may merge, the best score first, the leftmost among equals (Kudo and Richardson 2018,
SentencePiece; the same order as llama.cpp). The `tokenizers` library would need all merges listed, half a
million pairs for a vocabulary of 262k, built in about a second. Here the vocabulary itself is the merge table.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

SPACE_MARK = "▁"

_CACHE_ENTRIES = 65536
_CACHED_LENGTH = 32


class SpmEncoder:
    """Text to ids by scored merges.

    Args:
        mergeable: token text to id, of the tokens that merging may form (never control or byte tokens).
        scores: score per id.
        byte_ids: id of `<0xNN>` for each byte, or None where the vocabulary has none.
        unknown_id: for bytes without a token; None drops them.
    """

    def __init__(
        self,
        mergeable: dict[str, int],
        scores: Sequence[float],
        byte_ids: Sequence[int | None],
        unknown_id: int | None,
    ) -> None:
        self._ids = mergeable
        self._scores = scores
        self._byte_ids = [unknown_id if token_id is None else token_id for token_id in byte_ids]
        self._bonds = _bonds_inside(mergeable)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, whose spaces become U+2581; nothing is added in front."""
        ids: list[int] = []
        cache = self._cache
        for chunk in self._chunks(text.replace(" ", SPACE_MARK)):
            known = cache.get(chunk)
            if known is None:
                known = self._merge(chunk)
                if len(chunk) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHE_ENTRIES:
                        cache.clear()
                    cache[chunk] = known
            ids += known
        return ids

    def _chunks(self, text: str) -> list[str]:
        """`text` cut where no token of the vocabulary holds the two neighbours: no merge can cross it."""
        if len(text) < 2:
            return [text] if text else []
        bonds = _neighbours(text)
        at = np.searchsorted(self._bonds, bonds)
        at[at == len(self._bonds)] = 0
        cuts = (np.nonzero(self._bonds[at] != bonds)[0] + 1).tolist()
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _merge(self, chunk: str) -> list[int]:
        """Merge neighbours, best score first, until no two of them form a token."""
        ids, scores = self._ids, self._scores
        size = len(chunk)
        # A symbol is chunk[start:end[start]]; end 0 marks one that was merged into its left neighbour.
        end = list(range(1, size + 1))
        left = list(range(-1, size - 1))
        queue: list[tuple[float, int, int, int]] = []
        for start in range(size - 1):
            token = ids.get(chunk[start : start + 2])
            if token is not None:
                queue.append((-scores[token], start, start + 1, start + 2))
        heapq.heapify(queue)
        while queue:
            _, start, middle, stop = heapq.heappop(queue)
            if end[start] != middle or end[middle] != stop:
                continue  # one of the two has merged since
            end[start] = stop
            end[middle] = 0
            if stop < size:
                left[stop] = start
                token = ids.get(chunk[start : end[stop]])
                if token is not None:
                    heapq.heappush(queue, (-scores[token], start, stop, end[stop]))
            before = left[start]
            if before >= 0:
                token = ids.get(chunk[before:stop])
                if token is not None:
                    heapq.heappush(queue, (-scores[token], before, start, stop))
        result: list[int] = []
        start = 0
        while start < size:
            stop = end[start]
            token = ids.get(chunk[start:stop])
            if token is not None:
                result.append(token)
            else:  # a character without a token: its bytes
                for byte in chunk[start:stop].encode():
                    token = self._byte_ids[byte]
                    if token is not None:
                        result.append(token)
            start = stop
        return result


def _neighbours(text: str) -> np.ndarray:
    """[len(text) - 1] uint64: each pair of neighbouring characters as one number."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    bonds: np.ndarray = points[:-1] << np.uint64(32) | points[1:]
    return bonds


def _bonds_inside(tokens: dict[str, int]) -> np.ndarray:
    """Sorted pairs of neighbouring characters that occur inside tokens."""
    separator = "\ufdd2"  # a noncharacter; pairs with it match no text worth the name
    joined = separator.join(token for token in tokens if len(token) > 1)
    bonds = np.unique(_neighbours(joined)) if len(joined) > 1 else np.empty(0, np.uint64)
    return bonds if len(bonds) else np.zeros(1, np.uint64)
