"""Fields that several endpoints share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from leafage.core.sampling_params import SamplingParams


class Strict(BaseModel):
    """No value of another type, no unknown field (`read_body` may tolerate the latter)."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class StreamOptions(Strict):
    """`include_usage`: a last chunk with the usage. `continuous_usage_stats`: usage in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


Stop = str | list[str] | None


class Sampling(Strict):
    """How tokens are drawn. None means: what the model recommends, else the OpenAI API's default."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int | None, Field(description="makes the draws repeatable")] = None
    stop: Stop = None
    logit_bias: Annotated[
        dict[str, float] | None, Field(description="token id -> value added to its logit, in [-100, 100]")
    ] = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    beam_width: Annotated[
        int | None, Field(description="search for the most likely answers with so many beams")
    ] = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None

    def sampling_params(self, base: SamplingParams, **settings: Any) -> SamplingParams:
        """`base` with `settings`, then with the fields that were given.

        Raises:
            InvalidParameterError: a value is out of range.
        """
        given = {name: getattr(self, name) for name in Sampling.model_fields}
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        if "logit_bias" in given:
            given["logit_bias"] = {_token_id(key): bias for key, bias in given["logit_bias"].items()}
        if self.beam_width is not None:  # which draws nothing: what is recommended for drawing has no use
            base = replace(base, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
        return replace(base, **{**settings, **given})


class Extensions(Strict):
    """What the OpenAI API does not have."""

    cache_salt: Annotated[
        str | None, Field(description="prefixes are shared only with requests of the same salt")
    ] = None
    priority: Annotated[int | None, Field(description="its class; lower ones run first")] = None
    user: Annotated[str | None, Field(description="whom the policy 'fair' charges")] = None
    explain_cache: Annotated[
        bool, Field(description="say where the cached prefix of the prompt ended, and why")
    ] = False


def _token_id(text: str) -> int:
    from leafage.errors import InvalidParameterError

    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InvalidParameterError("logit_bias: a token id must be a number", value=text)
    return int(text)
