"""Scored merges against the definition, and the cut into independent pieces against no cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from leafage.text.bonds import Bonds
from leafage.text.spm import SpmEncoder

ALPHABET = "ab▁é"
vocabularies = st.dictionaries(
    st.text(ALPHABET, min_size=1, max_size=5), st.integers(-4, 0).map(float), max_size=25
)


def by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """Merge the best-scored pair of neighbours, the leftmost of equals, until there is none."""
    symbols = list(text)
    while True:
        candidates = [
            (-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores
        ]
        if not candidates:
            return symbols
        _, i = min(candidates)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(vocabularies, st.text(ALPHABET.replace("▁", " "), max_size=25))
def test_merges_follow_the_definition(scores: dict[str, float], text: str) -> None:
    tokens = list(scores)
    ids = {token: i for i, token in enumerate(tokens)}
    byte_ids: list[int | None] = [1000 + byte for byte in range(256)]
    encoder = SpmEncoder(ids, [scores[token] for token in tokens], byte_ids, None)
    expected: list[int] = []
    for symbol in by_definition(text.replace(" ", "▁"), scores):
        expected += [ids[symbol]] if symbol in ids else [1000 + byte for byte in symbol.encode()]
    assert encoder.encode(text) == expected
    assert encoder.encode(text) == expected, "the second time, out of the cache"


@given(st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=10), st.text(ALPHABET, max_size=30))
def test_cuts_cross_no_token(tokens: list[str], text: str) -> None:
    pieces = Bonds(tokens).cut(text)
    assert "".join(pieces) == text
    assert "" not in pieces
    cuts = set()
    at = 0
    for piece in pieces[:-1]:
        at += len(piece)
        cuts.add(at)
    for token in tokens:
        start = text.find(token)
        while start >= 0:
            assert not cuts & set(range(start + 1, start + len(token)))
            start = text.find(token, start + 1)


def test_bytes_without_a_token_become_unknown_or_vanish() -> None:
    byte_ids: list[int | None] = [None] * 256
    assert SpmEncoder({"a": 5}, [0.0] * 6, byte_ids, 0).encode("aéa") == [5, 0, 0, 5]
    assert SpmEncoder({"a": 5}, [0.0] * 6, byte_ids, None).encode("aéa") == [5, 5]
