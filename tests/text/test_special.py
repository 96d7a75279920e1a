"""Finding and protecting special tokens, and the names that end a generation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leafage.text.special import LITERAL_MARK, TokenFinder, named_end_ids, protect

TOKENS = {"<s>": 1, "<s>s": 2, "<|end|>": 3, "  ": 4, **{f"<unused{i}>": 5 + i for i in range(60)}}


def by_definition(text: str, tokens: dict[str, int]) -> list[str | int]:
    """llama.cpp: the longest token first, over all text that is left, from left to right."""
    pieces: list[str | int] = [text]
    for token in sorted(tokens, key=lambda t: len(t.encode()), reverse=True):
        done: list[str | int] = []
        for piece in pieces:
            while isinstance(piece, str) and (at := piece.find(token)) >= 0:
                done += [piece[:at], tokens[token]]
                piece = piece[at + len(token) :]
            done.append(piece)
        pieces = done
    return [piece for piece in pieces if piece != ""]


@given(
    st.lists(
        st.sampled_from([*list(TOKENS)[:30], "<", "s", ">", " ", "x", "<s", "<unused"]), max_size=12
    ).map("".join)
)
def test_split_follows_the_definition(text: str) -> None:
    assert TokenFinder(TOKENS).split(text) == by_definition(text, TOKENS)


@given(st.lists(st.sampled_from([*list(TOKENS)[:9], "<", "s", ">", "x"]), max_size=12).map("".join))
def test_t01_protected_text_has_no_token_and_comes_back(text: str) -> None:
    finder = TokenFinder(TOKENS)
    protected = protect(text, finder.present(text))
    assert finder.present(protected) == []
    assert protected.replace(LITERAL_MARK, "") == text


def test_tokens_that_swallow_white_space_behind_them() -> None:
    finder = TokenFinder({"<a>": 1, "<b>": 2}, strip_right=frozenset([1]))
    assert finder.split("x <a> \n y <b> z") == ["x ", 1, "y ", 2, " z"]


def test_end_names() -> None:
    vocabulary = {"<|im_end|>": 1, "<end_of_turn>": 2, "</s>": 3, "<eos>": 4, "<|eot_id|>": 5, "hello": 6}
    assert named_end_ids(vocabulary, frozenset([1, 4, 6])) == {1, 2, 4, 5}
    assert named_end_ids(vocabulary, frozenset([3])) >= {3}


def test_harmony_messages_end_without_ending_the_turn() -> None:
    vocabulary = {"<|end|>": 1, "<|return|>": 2, "<|call|>": 3}
    assert named_end_ids(vocabulary, frozenset([1, 2, 3])) == {2, 3}
    assert named_end_ids({"<|end|>": 1}, frozenset()) == {1}
