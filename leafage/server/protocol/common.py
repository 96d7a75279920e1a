"""Fields that several endpoints share."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from leafage.core.sampling_params import SamplingParams

MAX_LOOKED_AT = 1000
"""Mistakes of one value, of which each costs time."""
NO_SEED = -1
"""What vLLM and llama.cpp take for none."""
_TELLING = frozenset(("extra_forbidden", "missing", "literal_error", "refused", "shape", "too_long"))
"""Kinds of mistakes that say more than that a value has the wrong shape."""


class Strict(BaseModel):
    """No value of another type, no unknown field (`read_body` may tolerate the latter)."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field of the OpenAI API that can change nothing here: null and the `values` that ask for
    nothing else are accepted, all others refused with the reason `why`."""

    values: tuple[Any, ...]
    why: str

    def __init__(self, *values: Any, why: str) -> None:
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "why", why)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [*self.values, None], "description": self.why}

    def _check(self, value: Any) -> Any:
        if value is None or any(value == one and type(value) is type(one) for one in self.values):
            return value
        accepted = ", ".join(json.dumps(one) for one in (*self.values, None))
        raise PydanticCustomError(
            "refused", "{why}. Leave it out; accepted: {accepted}", {"why": self.why, "accepted": accepted}
        )


@dataclass(frozen=True, slots=True)
class FirstMistake:
    """Marks a list of which the first mistake is told and no other: a body has room for millions."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", {**handler(source), "fail_fast": True})


@dataclass(frozen=True, slots=True)
class Described:
    """Marks a union: a value of another shape is refused with this description of what is taken, instead of
    one complaint for each branch. Mistakes inside a value of the right shape are told as they are."""

    what: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
            try:
                return inner(value)
            except ValidationError as error:
                few = error.error_count() <= MAX_LOOKED_AT
                if few and any(one["type"] in _TELLING for one in error.errors(include_input=False)):
                    raise
                raise PydanticCustomError("shape", "must be {what}", {"what": self.what}) from None

        return core_schema.no_info_wrap_validator_function(check, handler(source))


class StreamOptions(Strict):
    """`include_usage`: a last chunk with the usage. `continuous_usage_stats`: usage in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, Only(False, why="chunks are not padded")] = None


T = TypeVar("T")
List: TypeAlias = Annotated[list[T], FirstMistake()]
"""A client's list."""
Stop = Annotated[
    str | List[str] | None,
    Described("a string or a list of strings"),
    Field(description="texts that end an answer; they are not part of it"),
]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=16),
]


ModelName = Annotated[str | None, Field(description="a name of /v1/models; may be left out")]
Stream = Annotated[bool | None, Field(description="send the answer as server-sent events while it is made")]
ReturnTokenIds = Annotated[bool | None, Field(description="token ids of prompt and answer beside the texts")]


class Drawing(Strict):
    """How tokens are drawn. None means: what the model recommends, else the OpenAI API's default."""

    temperature: Annotated[
        float | None,
        Field(description="0 always takes the most likely token; the higher, the more is left to chance"),
    ] = None
    top_p: Annotated[
        float | None,
        Field(description="draw from the most likely tokens that together have this probability"),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Field(description="taken off the logit of each token that the answer has already, -2 to 2"),
    ] = None
    frequency_penalty: Annotated[float | None, Field(description="the same, times how often it has it")] = (
        None
    )
    seed: Annotated[
        int | None, Field(description="makes the draws repeatable; -1: by chance, as where nothing is said")
    ] = None
    stop: Stop = None
    logit_bias: Annotated[
        dict[str, float] | None, Field(description="token id -> value added to its logit, in [-100, 100]")
    ] = None
    top_k: Annotated[
        int | None, Field(description="draw from so many of the most likely tokens; 0: from all")
    ] = None
    min_p: Annotated[
        float | None,
        Field(
            description="draw from the tokens that are at least so likely, relative to the most likely one"
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Field(description="divides the logits of tokens that prompt or answer have, 0.01 to 100; 1: none"),
    ] = None
    stop_token_ids: Annotated[
        List[int] | None, Field(description="tokens that end an answer, beside the model's own")
    ] = None
    min_tokens: Annotated[int | None, Field(description="so many come before anything may end an answer")] = (
        None
    )
    ignore_eos: Annotated[bool | None, Field(description="go on where the model would end")] = None
    bad_words: Annotated[List[str] | None, Field(description="texts that an answer must not contain")] = None
    skip_special_tokens: Annotated[
        bool | None, Field(description="leave control tokens out of the text; default true")
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, Field(description="keep the stop string that ended an answer")
    ] = None

    def sampling_params(self, base: SamplingParams, **settings: Any) -> SamplingParams:
        """`base` with `settings`, then with the fields that were given.

        Raises:
            InvalidParameterError: a value is out of range.
        """
        given: dict[str, Any] = {name: getattr(self, name, None) for name in Sampling.model_fields}
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        seed = given.get("seed")
        if seed == NO_SEED:
            del given["seed"]
        elif seed is not None and -(2**63) <= seed < 0:  # OpenAI's are 64 bits with a sign
            given["seed"] = seed % 2**64
        if "logit_bias" in given:
            given["logit_bias"] = {_token_id(key): bias for key, bias in given["logit_bias"].items()}
        if "beam_width" in given:  # draws nothing: what is recommended for drawing has no use
            base = replace(base, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
        return replace(base, **{**settings, **given})


class Sampling(Drawing):
    """How many answers there are, and how they are found."""

    n: Annotated[int | None, Field(description="answers to each prompt")] = None
    prompt_logprobs: Annotated[
        int | None, Field(description="log-probabilities of the prompt's tokens, with so many alternatives")
    ] = None
    beam_width: Annotated[
        int | None, Field(description="search for the most likely answers with so many beams")
    ] = None
    length_penalty: Annotated[
        float | None,
        Field(description="beams are compared by their log-probability over length ** length_penalty"),
    ] = None
    early_stopping: Annotated[
        bool | str | None,
        Field(description="true: end with the first beam_width answers; 'never': when none can get better"),
    ] = None


class Extensions(Strict):
    """What the OpenAI API does not have."""

    cache_salt: Annotated[
        str | None, Field(description="prefixes are shared only with requests of the same salt")
    ] = None
    priority: Annotated[int | None, Field(description="its class; lower ones run first")] = None
    user: Annotated[str | None, Field(description="whom the policy 'fair' charges")] = None
    explain_cache: Annotated[
        bool | None, Field(description="say where the cached prefix of the prompt ended, and why")
    ] = None


class ChatHints(Extensions):
    """Fields that the OpenAI API has for conversations beside their content."""

    metadata: Annotated[Metadata | None, Field(description="comes back with the answer")] = None
    safety_identifier: Annotated[
        str | None, Field(description="the name of `user` since 2025; `user` wins where both are given")
    ] = None
    prompt_cache_key: Annotated[
        str | None,
        Field(description="which requests shall share a cache: here all do that have the same cache_salt"),
    ] = None
    prompt_cache_retention: Annotated[
        Any, Only("in_memory", why="prefixes are kept as long as memory lasts")
    ] = None
    prompt_cache_options: Annotated[
        Any, Only({"mode": "implicit"}, why="every prefix is cached by itself")
    ] = None
    service_tier: Annotated[Any, Only("auto", "default", why="there is one service tier")] = None
    moderation: Annotated[Any, Only(why="nothing is moderated here")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Field(description="variables of the chat template")
    ] = None

    @property
    def tenant(self) -> str | None:
        """Whom the policy `fair` charges."""
        return self.user if self.user is not None else self.safety_identifier


def _token_id(text: str) -> int:
    from leafage.errors import InvalidParameterError

    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InvalidParameterError("logit_bias: a token id must be a number", value=text)
    return int(text)
