"""SamplingParams: ranges are validated, by name."""

from __future__ import annotations

import math

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 1.0),
        ("n", True),
        ("best_of", 0),
        ("beam_width", 0),
        ("beam_width", 65),
        ("length_penalty", 0.5),
        ("early_stopping", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-203),  # logits over it are infinite: a failed request, not a refused one
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("stop", [""]),
        ("stop", [3]),
        ("bad_words", [""]),
        ("bad_words_token_ids", [[]]),
        ("bad_words_token_ids", [[3, -1]]),
        ("stop_token_ids", [-1]),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {-1: 1.0}),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1024),
        ("temperature", 0),
        ("temperature", 100.0),
        ("top_p", 1),
        ("top_k", 0),
        ("min_p", 1.0),
        ("presence_penalty", -2.0),
        ("seed", 2**64 - 1),
        ("max_tokens", None),
        ("min_tokens", 16),
        ("logprobs", 20),
        ("logit_bias", {0: -100.0}),
    ],
)
def test_the_ends_of_the_ranges_are_accepted(name: str, value: object) -> None:
    SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_spellings_of_other_engines() -> None:
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(bad_words="no").bad_words == ("no",)
    assert SamplingParams(temperature=0).greedy and not SamplingParams().greedy


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="beam"):
        SamplingParams(beam=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 3, "beam_width": 2}, "n asks for more answers than there are beams; got 3"),
        ({"n": 100, "beam_width": 10}, "limit: beam_width = 10"),
        ({"beam_width": 2, "early_stopping": 1}, "early_stopping"),
        ({"beam_width": 64, "stop_token_ids": range(16)}, "got 1088; limit: 1024"),
        ({"beam_width": 2, "best_of": 2}, "best_of"),
        ({"beam_width": 2, "top_p": 0.5}, "top_p"),
        ({"beam_width": 2, "top_k": 5}, "top_k"),
        ({"beam_width": 2, "min_p": 0.5}, "min_p"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature"),
        ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"beam_width": 2, "length_penalty": 5.5}, "length_penalty"),
    ],
)
def test_what_beam_search_and_best_of_cannot_use_is_refused(settings: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        SamplingParams(**settings)  # type: ignore[arg-type]


def test_the_size_of_the_gang() -> None:
    assert SamplingParams(n=2).num_sequences == 2
    assert SamplingParams(n=2, best_of=5).num_sequences == 5
    assert SamplingParams(n=2, beam_width=4, length_penalty=0.5, early_stopping="never").num_sequences == 4
