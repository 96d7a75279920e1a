"""The reasoning of thinking models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.server.tools.reasoning import ReasoningSplitter, opens_reasoning
from tests.server.tools.reading import splits


def split(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_open=is_open)
    found = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(part for part, _ in found), "".join(part for _, part in found)


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>\nHm, easy.\n</think>\n\nIt is 4.", "Hm, easy.", "It is 4."),
        ("\n <think>a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\nIt is 4.\n", "", "It is 4.\n"),
        ("<think>a < b \n</thin </think> c", "a < b \n</thin", "c"),
        ("<think>it never ends \n", "it never ends", ""),
        ("<think>it never </thi", "it never </thi", ""),
        ("<think>", "", ""),
        ("<think>a</think> \n", "a", ""),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("  It is 4.", "", "  It is 4."),
        ("It is <think>4</think>.", "", "It is <think>4</think>."),
        ("a</think>b", "", "a</think>b"),
        ("<thin", "", "<thin"),
        (" \n", "", " \n"),
        ("", "", ""),
    ],
)
def test_reasoning(text: str, reasoning: str, rest: str) -> None:
    assert split([text]) == split(list(text)) == (reasoning, rest)


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("Hm.\n</think>\n\nIt is 4.", "Hm.", "It is 4."),
        ("\nHm.", "Hm.", ""),
        ("</think>It is 4.", "", "It is 4."),
        ("<think>Hm.</think>", "<think>Hm.", ""),
        (" ", "", ""),
    ],
)
def test_reasoning_that_the_prompt_opened(text: str, reasoning: str, rest: str) -> None:
    assert split([text], is_open=True) == split(list(text), is_open=True) == (reasoning, rest)


PIECES = st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", " ", "\n", "<"])


@given(splits(st.lists(PIECES, max_size=10).map("".join)), st.booleans())
def test_the_result_does_not_depend_on_the_pieces(case: tuple[str, list[str]], is_open: bool) -> None:
    text, pieces = case
    assert split(pieces, is_open=is_open) == split([text], is_open=is_open)


def test_reasoning_is_sent_as_it_comes() -> None:
    splitter = ReasoningSplitter(is_open=False)
    assert [splitter.push(piece)[0] for piece in ("<think>", "\n", "a", " b", "\n<", "c")] == [
        "", "", "a", " b", "", "\n<c",
    ]  # fmt: skip


def test_where_a_prompt_ends() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_reasoning("<|im_start|>assistant\n")
