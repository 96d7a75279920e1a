"""ServerConfig: everything that can be set about the server, in one frozen dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from leafage.errors import InvalidParameterError

UNBOUNDED = 1 << 62


def _setting(default: Any, help: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": help}, repr=not secret)


def _limit(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help, "limit": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the server. Command-line flags, LEAFAGE_* variables and TOML keys are made of these fields.

    Sizes are in tokens unless the name says bytes; times are in seconds. None means: no limit.

    Raises:
        InvalidParameterError: naming the field, the value and the range.
    """

    host: str = _setting("127.0.0.1", "address to listen at; '0.0.0.0' lets other machines in")
    port: int = _setting(8000, "port to listen at; 0 takes a free one")
    served_model_name: tuple[str, ...] = _setting(
        (), "name that requests call the model by, may be repeated; default: the model as given"
    )
    api_key: tuple[str, ...] = _setting(
        (), "key that clients must send, may be repeated; default: anyone may ask", secret=True
    )
    api_key_file: str | None = _setting(None, "file with such keys, one a line")
    cors_origin: tuple[str, ...] = _setting(
        (), "origin of web pages that may use the server, https://chat.example, or *; may be repeated"
    )
    docs: bool = _setting(True, "serve /docs and /openapi.json")
    live: bool = _setting(True, "serve the live page at /")
    live_texts: str = _setting(
        "auto", "its texts of prompts and answers: 'shown', 'hidden', or 'auto', shown to this machine alone"
    )
    access_log: bool = _setting(False, "a line on stderr for each request")
    request_log: str | None = _setting(
        None, "file of requests' lengths, times and keyed hashes, no text; `leafage sim` replays it"
    )
    request_log_tenants: str = _setting("hashed", "how tenants are written there: 'hashed' or 'plain'")
    otlp_traces_endpoint: str | None = _setting(
        None, "send OpenTelemetry traces there, http://HOST:4318/v1/traces"
    )
    unknown_fields: str = _setting(
        "refuse", "fields of a request that nobody knows: 'refuse', or 'ignore' and name them in a header"
    )
    tool_parser: str = _setting(
        "auto",
        "format of tool calls: auto, hermes (Qwen too), llama3, gemma, mistral, granite, qwen3_coder or none",
    )
    tool_template: str = _setting(
        "model", "what tells the model of tools: its own chat template ('model'), or 'hermes'"
    )
    reasoning_parser: str = _setting(
        "auto", "whether thinking becomes reasoning_content: 'think', 'none', or 'auto'"
    )
    max_queue: int = _limit(1024, "most requests that wait; more get 429")
    max_prompt_len: int | None = _limit(None, "most tokens of a prompt; default: what --max-model-len leaves")
    max_body_bytes: int = _limit(4 << 20, "largest request body; default: 4MiB")
    rate_limit: float | None = _limit(None, "requests a minute of each API key; more get 429")
    request_timeout: float | None = _limit(None, "seconds after which a request ends with an error")
    send_timeout: float = _limit(60.0, "seconds that a client may take nothing, or send half a request")
    drain_timeout: float = _limit(60.0, "seconds that running requests have to end after SIGTERM or Ctrl-C")
    stall_limit: float = _limit(30.0, "seconds without progress after which /health/live says 503")

    def __post_init__(self) -> None:
        _check_text("host", self.host)
        _check_number("port", self.port, 0, 65535, whole=True)
        for name in ("served_model_name", "api_key", "cors_origin"):
            _check_texts(name, getattr(self, name))
        for key in self.api_key:
            check_api_key(key)
        if self.api_key_file is not None:
            _check_text("api_key_file", self.api_key_file)
        for origin in self.cors_origin:
            if origin != "*" and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin) is None:
                raise InvalidParameterError(
                    "cors_origin: no origin of a web page",
                    value=origin,
                    limit="scheme://host or scheme://host:port, or *",
                    remedy="write it as a browser does, without a path: https://chat.example",
                )
        for name in ("docs", "live", "access_log"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(f"{name} must be true or false", value=getattr(self, name))
        if self.live_texts not in ("auto", "shown", "hidden"):
            raise InvalidParameterError(
                "unknown live_texts", value=self.live_texts, limit="auto, shown or hidden"
            )
        if self.request_log is not None:
            _check_text("request_log", self.request_log)
        if self.otlp_traces_endpoint is not None:
            _check_text("otlp_traces_endpoint", self.otlp_traces_endpoint)
            if not self.otlp_traces_endpoint.startswith(("http://", "https://")):
                raise InvalidParameterError(
                    "otlp_traces_endpoint must be a URL",
                    value=self.otlp_traces_endpoint,
                    remedy="write it as http://HOST:4318/v1/traces",
                )
        if self.request_log_tenants not in ("hashed", "plain"):
            raise InvalidParameterError(
                "unknown request_log_tenants", value=self.request_log_tenants, limit="hashed or plain"
            )
        if self.unknown_fields not in ("refuse", "ignore"):
            raise InvalidParameterError(
                "unknown unknown_fields", value=self.unknown_fields, limit="refuse or ignore"
            )
        _check_parsers(self)
        _check_number("max_queue", self.max_queue, 0, whole=True)
        _check_number("max_body_bytes", self.max_body_bytes, 1024, whole=True)
        if self.max_prompt_len is not None:
            _check_number("max_prompt_len", self.max_prompt_len, 1, whole=True)
        if self.rate_limit is not None:
            _check_number("rate_limit", self.rate_limit, 0.01)
            if not self.api_key and self.api_key_file is None:
                raise InvalidParameterError(
                    "rate_limit counts the requests of each API key, and there is none",
                    value=self.rate_limit,
                    remedy="give api_key or api_key_file, or leave rate_limit out",
                )
        if self.request_timeout is not None:
            _check_number("request_timeout", self.request_timeout, 0.001)
        for name, low in (("send_timeout", 0.1), ("drain_timeout", 0), ("stall_limit", 0.1)):
            _check_number(name, getattr(self, name), low)


def _check_parsers(config: ServerConfig) -> None:
    from leafage.server.tools.choose import REASONING_PARSERS, TOOL_PARSERS, TOOL_TEMPLATES

    for name, known in (
        ("tool_parser", TOOL_PARSERS),
        ("tool_template", TOOL_TEMPLATES),
        ("reasoning_parser", REASONING_PARSERS),
    ):
        value = getattr(config, name)
        if value not in known:
            raise InvalidParameterError(f"unknown {name}", value=value, limit=", ".join(known))


def check_api_key(key: str) -> None:
    """Raises InvalidParameterError for one that no client could send. It is not shown."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidParameterError(
            "api_key holds a character that a header cannot carry, or none at all",
            limit="printable ASCII without spaces",
        )


def read_api_keys(path: str) -> tuple[str, ...]:
    """The keys of a file, one a line. Empty lines, and those that begin with #, are none.

    Raises:
        InvalidParameterError: the file cannot be read, or holds no key, or what is no key.
    """
    from pathlib import Path

    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(f"api_key_file cannot be read: {error}", value=path) from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise InvalidParameterError("api_key_file holds no key", value=path, remedy="write one a line")
    for key in keys:
        check_api_key(key)
    return keys


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidParameterError(f"{name} must be a text", value=value)


def _check_texts(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        raise InvalidParameterError(f"{name} must be a tuple of texts")
    if not all(values):
        raise InvalidParameterError(f"{name} must not be empty", remedy="leave it out, or give it a value")


def _check_number(
    name: str, value: object, low: float, high: float = UNBOUNDED, *, whole: bool = False
) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidParameterError(f"{name} must be {'an integer' if whole else 'a number'}", value=value)
    if not low <= value <= high:  # NaN neither
        limit = f"at least {low}" if high == UNBOUNDED else f"{low} to {high}"
        raise InvalidParameterError(f"{name} is out of range", value=value, limit=limit)
