"""ServerConfig: everything that can be set about the server, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leafage.errors import InvalidParameterError


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the server. Command-line flags, LEAFAGE_* variables and TOML keys are made of these fields.

    Raises:
        InvalidParameterError: naming the field, the value and the range.
    """

    host: str = _setting("127.0.0.1", "address to listen at; '0.0.0.0' lets other machines in")
    port: int = _setting(8000, "port to listen at; 0 takes a free one")
    served_model_name: tuple[str, ...] = _setting(
        (), "name that requests call the model by, may be repeated; default: the model as given"
    )
    unknown_fields: str = _setting(
        "refuse",
        "unknown fields of a request: 'refuse' (400, by name), or 'ignore' as OpenAI does, and list them in "
        "the response header X-Leafage-Ignored-Fields",
    )
    max_queue: int = _setting(1024, "most requests that wait; more get 429")
    max_body_bytes: int = _setting(16 << 20, "largest request body; larger ones get 413")
    request_timeout: float | None = _setting(None, "seconds after which a request ends with an error")
    send_timeout: float = _setting(60.0, "seconds that a client may take nothing of its stream")
    stall_limit: float = _setting(30.0, "seconds without progress after which /health/live says 503")

    def __post_init__(self) -> None:
        if self.unknown_fields not in ("refuse", "ignore"):
            raise InvalidParameterError(
                "unknown unknown_fields", value=self.unknown_fields, limit="refuse or ignore"
            )
