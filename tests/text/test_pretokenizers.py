"""Every pre-tokenizer's regexes against the splits of llama.cpp's own regex engine."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from leafage.text.pretokenizers import PRE_TOKENIZERS
from tests.text.vocabularies import golden


def families() -> list[str]:
    """The first name of each set of rules."""
    first = {id(rules): name for name, rules in reversed(PRE_TOKENIZERS.items())}
    return sorted(first.values())


@pytest.mark.parametrize("name", families())
def test_splits_are_llama_cpp_splits(name: str) -> None:
    stored = golden("splits")
    assert len(stored["splits"][name]) > 80, "too few comparable texts stored for this family"
    rules = PRE_TOKENIZERS[name]
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    )
    for index, lengths in stored["splits"][name].items():
        text = stored["texts"][int(index)]
        assert [len(piece) for piece, _ in splitter.pre_tokenize_str(text)] == lengths, text


def test_two_spaces_before_a_digit() -> None:
    # the second space belongs to the word in front of which it stands; digits stand alone
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS["smollm"].patterns]
    )
    assert [piece for piece, _ in splitter.pre_tokenize_str("a  37 b")] == ["a", "  ", "3", "7", " b"]
