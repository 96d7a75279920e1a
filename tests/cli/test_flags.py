from __future__ import annotations

from dataclasses import fields

import pytest

from leafage.cli import flags
from leafage.config import EngineConfig
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError


def test_every_setting_is_a_flag_or_left_out_on_purpose() -> None:
    engine = {f.name for f in fields(EngineConfig)}
    assert engine - set(flags.ENGINE_FLAGS) == {"model", "seed", "chat_template"}
    sampling = {f.name for f in fields(SamplingParams) if f.metadata.get("cli", True)}
    assert set(flags.SAMPLING_FLAGS) | {"n", "logprobs", "prompt_logprobs"} >= sampling - flags.INTERNAL


def test_flags_have_help() -> None:
    for cls, names in ((EngineConfig, flags.ENGINE_FLAGS), (SamplingParams, flags.SAMPLING_FLAGS)):
        for name, annotation in flags._parameters(cls, names, flags.ENGINE, {}).items():
            assert annotation.__metadata__[0].help, f"{name} has no help"


def test_only_given_flags_reach_the_command() -> None:
    seen = {}

    @flags.with_flags(("threads",), ("temperature", "stop"))
    def command(word: str, **given: object) -> None:
        seen.update(given)

    command("x", threads=None, temperature=0.5, stop=None)
    assert seen == {"temperature": 0.5}


def test_seed_belongs_to_the_request() -> None:
    given = {"seed": 3, "threads": 1}
    assert flags.engine_settings(given) == {"threads": 1}
    assert flags.sampling_params(given, SamplingParams()).seed == 3


def test_sampling_params_layers() -> None:
    params = flags.sampling_params(
        {"top_k": 5, "logit_bias": ["7=-100", "8=2.5"]}, SamplingParams(top_p=0.5), temperature=0.0, top_k=9
    )
    assert (params.top_p, params.temperature, params.top_k) == (0.5, 0.0, 5)
    assert params.logit_bias == {7: -100.0, 8: 2.5}


def test_beam_search_sets_aside_what_is_recommended_for_drawing() -> None:
    recommended = SamplingParams(temperature=0.2, top_p=0.9, top_k=50)
    given = {"beam_width": 4, "early_stopping": "True"}
    params = flags.sampling_params(given, recommended, temperature=0.5)
    assert (params.beam_width, params.early_stopping) == (4, True)
    with pytest.raises(InvalidParameterError, match="top_k"):
        flags.sampling_params({"beam_width": 4, "top_k": 5}, recommended)
    with pytest.raises(InvalidParameterError, match="early_stopping"):
        flags.sampling_params({"beam_width": 4, "early_stopping": "soon"}, recommended)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("512MiB", 512 << 20),
        ("2g", 2 * 10**9),
        ("1.5GiB", 3 << 29),
        ("1e9", 10**9),
        ("4 KB", 4000),
    ],
)
def test_parse_bytes(text: str, size: int) -> None:
    assert flags.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1.2.3", "5TB", "0x10"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="not a size"):
        flags.parse_bytes(text)
