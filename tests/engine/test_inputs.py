from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import InputProcessor
from leafage.errors import InvalidParameterError


class WordTokenizer:
    """Words are single ids; a word with a space before it has another id. 'x' words split into letters."""

    ids = {"cat": 1, " cat": 2, "\u2581": 3, "dog": 4}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool, bool]] = []

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        self.calls.append((text, add_special, parse_special))
        if text in self.ids:
            return [self.ids[text]]
        return [100 + ord(char) for char in text]


@pytest.fixture
def inputs() -> InputProcessor:
    return InputProcessor(WordTokenizer())


def ids_of(inputs: InputProcessor, prompt: Any) -> list[int]:
    return inputs.request("r", prompt, SamplingParams()).prompt_token_ids


def test_kinds_of_prompts(inputs: InputProcessor) -> None:
    assert ids_of(inputs, "cat") == [1]
    assert ids_of(inputs, {"prompt": "cat"}) == [1]
    for ids in ([5, 6], (5, 6), np.array([5, 6], dtype=np.int32), {"prompt_token_ids": [5, 6]}):
        result = ids_of(inputs, ids)
        assert result == [5, 6] and all(type(i) is int for i in result)


def test_a_prompt_text_is_the_callers_own() -> None:
    tokenizer = WordTokenizer()
    InputProcessor(tokenizer).request("r", "cat", SamplingParams())
    assert tokenizer.calls == [("cat", True, True)]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "must be a string"),
        ([1, 2.5], "must be integers"),
        ([True], "must be integers"),
        (["cat"], "must be integers"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "needs either"),
        ({}, "needs either"),
        ({"prompt": "a", "multi_modal_data": 1}, "multi_modal_data"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt"),
        ({"prompt": "a", "tenant": 3}, "tenant must be a string"),
    ],
)
def test_other_prompts_are_refused_by_name(inputs: InputProcessor, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        ids_of(inputs, prompt)


def test_cache_salt_is_carried(inputs: InputProcessor) -> None:
    assert inputs.request("r", {"prompt": "cat", "cache_salt": "me"}, SamplingParams()).cache_salt == "me"


def test_bad_words_with_and_without_space(inputs: InputProcessor) -> None:
    params = inputs.with_bad_words(SamplingParams(bad_words=["cat", " dog"], bad_words_token_ids=[[9]]))
    space = 100 + ord(" ")
    assert params.bad_words_token_ids == ((9,), (1,), (2,), (4,), (space, *(100 + ord(c) for c in "dog")))


def test_bad_words_add_no_special_tokens() -> None:
    tokenizer = WordTokenizer()
    InputProcessor(tokenizer).with_bad_words(SamplingParams(bad_words=["cat"]))
    assert [(add, parse) for _, add, parse in tokenizer.calls] == [(False, False)] * 2


def test_parameters_without_bad_words_are_handed_on_as_they_are(inputs: InputProcessor) -> None:
    params = SamplingParams()
    assert inputs.with_bad_words(params) is params


@pytest.mark.parametrize("priority", ["high", 1.5, True, None])
def test_a_priority_that_is_no_integer_is_refused(inputs: InputProcessor, priority: Any) -> None:
    """The queue could not be sorted, and everybody's requests would end."""
    with pytest.raises(InvalidParameterError, match="priority must be an integer"):
        inputs.request("r", "cat", SamplingParams(), priority=priority)
    with pytest.raises(InvalidParameterError, match="priority"):
        inputs.prefix("cat", priority=priority)


def test_a_salt_of_a_pin_is_a_string_and_given_once(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidParameterError, match="cache_salt must be a string"):
        inputs.prefix("cat", cache_salt=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match=r"given twice.*Give it in the prompt"):
        inputs.prefix({"prompt": "cat", "cache_salt": "a"}, cache_salt="b")
