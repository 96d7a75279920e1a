"""Command-line flags made from EngineConfig, ServerConfig and SamplingParams: one place says what a setting
is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter

from leafage.config import EngineConfig
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError
from leafage.server.config import ServerConfig

SAMPLING = Group("Sampling", sort_key=2)
ENGINE = Group("Engine", sort_key=3)
SERVER = Group("Server", sort_key=1)
LIMITS = Group("Limits", sort_key=2)

INTERNAL = {"bad_words_token_ids"}
"""Fields that the engine fills in; no flags."""

ENGINE_FLAGS = tuple(f.name for f in fields(EngineConfig) if f.name not in ("model", "seed", "chat_template"))
SAMPLING_FLAGS = tuple(
    f.name for f in fields(SamplingParams) if f.name not in INTERNAL | {"n", "logprobs", "prompt_logprobs"}
)

# Where the docstring speaks to programs, or leaves out what else can be written.
_SAMPLING_HELP = {
    "seed": "makes the draws repeatable; without it every run draws its own",
    "max_tokens": "most tokens of the answer",
    "logprobs": "with --json: so many alternatives for each token of the answer",
    "prompt_logprobs": "with --json: so many alternatives for each token of the prompt",
    "stop": "text that ends the answer and is left out of it; may be repeated",
    "stop_token_ids": "id that ends the answer besides the model's own; may be repeated",
    "bad_words": "text that must not be produced; may be repeated",
    "logit_bias": "ID=BIAS: add BIAS, in [-100, 100], to that token's logit; may be repeated",
}
_ENGINE_HELP = {
    "kv_cache_bytes": "size of the KV pool: 512MiB, 2GiB, ...; default: the smaller of 4 GiB and 40 % of the "
    "memory left; in a simulation what the device's memory leaves",
}

_NO_DRAWING: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}

_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def with_flags(
    engine: tuple[str, ...] = (),
    sampling: tuple[str, ...] = (),
    defaults: Mapping[str, object] | None = None,
    server: tuple[str, ...] = (),
) -> Callable[[_Function], _Function]:
    """Give a command whose last parameter is `**flags` one flag for each of these fields.

    Flags that were not given are left out of `flags`, so that defaults stay where they are defined.
    `defaults` says in the help what the command itself puts in their place.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        added = _parameters(EngineConfig, engine, ENGINE, {})
        added |= _parameters(ServerConfig, server, SERVER, {})
        added |= _parameters(SamplingParams, sampling, SAMPLING, defaults or {})

        def command(*args: Any, **kwargs: Any) -> Any:
            given = {k: v for k, v in kwargs.items() if v is not None or k not in added}
            return function(*args, **given)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        parameters = own + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in added.items()
        ]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command  # type: ignore[return-value]

    return decorate


def engine_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that are fields of EngineConfig (a name that both have belongs to the request)."""
    ours = {f.name for f in fields(EngineConfig)} - {f.name for f in fields(SamplingParams)}
    return {name: value for name, value in flags.items() if name in ours}


def sampling_params(flags: Mapping[str, Any], base: SamplingParams, **defaults: Any) -> SamplingParams:
    """`base` with `defaults`, then with the flags that were given."""
    names = {f.name for f in fields(SamplingParams)}
    given = {name: value for name, value in flags.items() if name in names}
    if "logit_bias" in given:
        given["logit_bias"] = dict(map(_parse_bias, given["logit_bias"]))
    if "early_stopping" in given:
        typed = given["early_stopping"]
        given["early_stopping"] = {"true": True, "false": False}.get(typed.lower(), typed)
    if "beam_width" in given:  # which draws nothing: what is recommended for drawing does not count
        base = replace(base, **_NO_DRAWING)
        defaults = {name: value for name, value in defaults.items() if name not in _NO_DRAWING}
    return replace(base, **{**defaults, **given})


def _parameters(
    cls: type, names: tuple[str, ...], group: Group, defaults: Mapping[str, object]
) -> dict[str, Any]:
    hints = get_type_hints(cls)
    documented = _documented(cls)
    helps = {SamplingParams: _SAMPLING_HELP, EngineConfig: _ENGINE_HELP}.get(cls, {})
    found = {}
    for field in fields(cls):
        if field.name not in names:
            continue
        text = helps.get(field.name) or field.metadata.get("help") or documented.get(field.name, "")
        default = defaults.get(field.name, field.default)
        if default not in (None, MISSING, (), "") and "default:" not in text:
            text += f" [default: {str(default).lower() if isinstance(default, bool) else default}]"
        group = LIMITS if field.metadata.get("limit") else group
        options: dict[str, Any] = {"help": _as_flags(text), "group": group, "show_default": False}
        kind = _flag_type(hints[field.name])
        if field.name.endswith("_bytes"):
            options["converter"] = _bytes_converter
        if kind in (list[str], list[int]) or (kind is bool and default is False):
            options["negative"] = ""
        found[field.name] = Annotated[kind | None, Parameter(**options)]
    return found


def _as_flags(text: str) -> str:
    """Names of other settings as they are typed: kv_cache_bytes -> --kv-cache-bytes."""
    names = {
        f.name for cls in (EngineConfig, ServerConfig, SamplingParams) for f in fields(cls) if "_" in f.name
    }
    return re.sub(r"[a-z]+(_[a-z]+)+", lambda m: _flag(m[0]) if m[0] in names else m[0], text)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag_type(hint: Any) -> Any:
    text = str(hint)
    if hint == bool | str:
        return str
    if "Mapping" in text:
        return list[str]
    if hint == tuple[str, ...]:
        return list[str]
    if "Sequence" in text:
        return list[int] if "[int]" in text else list[str]
    for kind in (bool, int, float, str):
        if hint is kind or hint == kind | None:
            return kind
    raise TypeError(f"no flag for a field of type {hint}")


def _documented(cls: type) -> dict[str, str]:
    """What the class's docstring says under "Attributes:", by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return {name: text.rstrip(".") for name, text in found.items()}


def _bytes_converter(kind: Any, tokens: Any) -> int:
    return parse_bytes(tokens[0].value)


def parse_bytes(text: str) -> int:
    """'512MiB', '2g', '1e9' -> bytes."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmg]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidParameterError("not a size", value=text, remedy="write it as 512MiB or 2GiB")
    try:
        return int(float(match[1]) * _UNITS[match[2]])
    except ValueError:  # two points
        raise InvalidParameterError("not a size", value=text, remedy="write it as 512MiB or 2GiB") from None


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidParameterError(
            "logit-bias must be ID=BIAS", value=text, remedy="as in 1234=-100"
        ) from None
