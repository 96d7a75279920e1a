"""SentencePiece-style byte-pair encoding, driven by token scores.

A GGUF file with `tokenizer.ggml.model = llama` has scores and no merge list: any two neighbours whose
concatenation is a token may merge, the best score first, the leftmost among equals (Kudo and Richardson
2018, SentencePiece; the same order as llama.cpp). The `tokenizers` library would need all merges listed,
half a million pairs for a vocabulary of 262k, built in about a second. Here the vocabulary itself is the
merge table.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from leafage.text.bonds import Bonds, ChunkCache

SPACE_MARK = "▁"

_START_BITS = 40
_START_MASK = (1 << _START_BITS) - 1


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
        # rank 0 is the best score; equal scores share a rank
        self._ranks: list[int] = np.unique(-np.asarray(scores), return_inverse=True)[1].tolist()
        self._byte_ids = [unknown_id if token_id is None else token_id for token_id in byte_ids]
        self._pieces = ChunkCache(Bonds(mergeable), self._merge)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, whose spaces become U+2581; nothing is added in front."""
        return self._pieces.encode(text.replace(" ", SPACE_MARK))

    def _merge(self, chunk: str) -> list[int]:
        """Merge neighbours, best score first, until no two of them form a token."""
        ids, ranks = self._ids, self._ranks
        size = len(chunk)
        # A symbol is chunk[start : end[start]]; end is 0 for one that was merged into its left neighbour.
        end = list(range(1, size + 1))
        left = list(range(-1, size - 1))
        # An entry is the rank and the start of a pair that could merge when it was made, as one number.
        queue: list[int] = []
        for start in range(size - 1):
            token = ids.get(chunk[start : start + 2])
            if token is not None:
                queue.append(ranks[token] << _START_BITS | start)
        heapq.heapify(queue)
        while queue:
            entry = heapq.heappop(queue)
            start = entry & _START_MASK
            middle = end[start]
            if middle == 0 or middle == size:
                continue
            stop = end[middle]
            token = ids.get(chunk[start:stop])
            if token is None or ranks[token] != entry >> _START_BITS:
                continue  # one of the two has merged since, and what is there now has its own entry
            end[start] = stop
            end[middle] = 0
            if stop < size:
                left[stop] = start
                token = ids.get(chunk[start : end[stop]])
                if token is not None:
                    heapq.heappush(queue, ranks[token] << _START_BITS | start)
            before = left[start]
            if before >= 0:
                token = ids.get(chunk[before:stop])
                if token is not None:
                    heapq.heappush(queue, ranks[token] << _START_BITS | before)
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
