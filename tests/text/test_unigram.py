"""Unigram segmentation against all segmentations, and damaged normalizers."""

from __future__ import annotations

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.errors import ModelFileError
from leafage.text.unigram import Charsmap, UnigramEncoder

UNKNOWN = 99


def encoder(scores: dict[str, float], **options: bool) -> UnigramEncoder:
    tokens = list(scores)
    options = {"add_space": False, "merge_spaces": False, **options}
    return UnigramEncoder(
        {token: i for i, token in enumerate(tokens)},
        [scores[token] for token in tokens],
        min(scores.values(), default=0.0),
        UNKNOWN,
        Charsmap(b""),
        **options,
    )


def best_sum(text: str, scores: dict[str, float]) -> float:
    """Over all segmentations, by recursion."""
    if not text:
        return 0.0
    options = [
        scores[text[:n]] + best_sum(text[n:], scores) for n in range(1, len(text) + 1) if text[:n] in scores
    ]
    if text[0] not in scores:
        options.append(min(scores.values(), default=0.0) - 10.0 + best_sum(text[1:], scores))
    return max(options)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(-8, -1).map(float), max_size=12),
    st.text("abcd", max_size=9),
)
def test_the_best_segmentation_is_found(scores: dict[str, float], text: str) -> None:
    tokens = list(scores)
    ids = encoder(scores).encode(text)
    if UNKNOWN not in ids:
        assert "".join(tokens[i] for i in ids) == text
        assert sum(scores[tokens[i]] for i in ids) == best_sum(text, scores)
    assert (UNKNOWN, UNKNOWN) not in itertools.pairwise(ids)
    known_text = text
    for i in ids:
        if i != UNKNOWN:
            assert tokens[i] in known_text


def test_spaces() -> None:
    scores = {"▁": -2.0, "▁a": -1.0, "a": -3.0}
    assert encoder(scores).encode("a a") == [2, 1]
    assert encoder(scores, add_space=True).encode("a a") == [1, 1]
    assert encoder(scores, merge_spaces=True).encode("  a   a  ") == [1, 1]
    assert encoder(scores, merge_spaces=True).encode("   ") == []


@pytest.mark.parametrize(
    "blob", [b"\0", struct.pack("<I", 400) + b"\0" * 16, struct.pack("<I", 3) + b"\0" * 9]
)
def test_truncated_charsmap_is_refused(blob: bytes) -> None:
    with pytest.raises(ModelFileError, match="precompiled_charsmap"):
        Charsmap(blob)


@given(st.binary(min_size=40, max_size=200), st.text(max_size=20))
def test_damaged_charsmap_never_hangs_or_crashes(noise: bytes, text: str) -> None:
    size = len(noise) // 8 * 4
    with contextlib.suppress(ModelFileError):
        Charsmap(struct.pack("<I", size) + noise).normalize(text)
