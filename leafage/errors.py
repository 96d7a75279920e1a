"""Typed errors. Every message says what happened, the value, the limit and what to do."""

from __future__ import annotations

from typing import Any


class LeafageError(Exception):
    """Base of all errors that Leafage raises on purpose.

    Args:
        what: what happened, one clause, naming the thing that was refused.
        value: the offending value, or None when there is none.
        limit: what would have been accepted, or None.
        remedy: what the caller can do, or None.
    """

    def __init__(
        self, what: str, *, value: object = None, limit: object = None, remedy: str | None = None
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        self.remedy = remedy
        parts = [what]
        if value is not None:
            parts.append(f"got {value!r}" if isinstance(value, str) else f"got {value}")
        if limit is not None:
            parts.append(f"limit: {limit}")
        message = "; ".join(parts)
        if remedy is not None:
            message += f". {remedy[0].upper()}{remedy[1:]}"
        super().__init__(message)


class InvalidParameterError(LeafageError, ValueError):
    """A parameter of a request or of the configuration is unknown or out of range."""


class RequestTooLargeError(LeafageError, ValueError):
    """The request could never run, however long it waited."""


class PinRefusedError(LeafageError):
    """Pins would hold more of the KV cache than they may; released ones make room."""


class ModelFileError(LeafageError):
    """A model file is truncated, corrupt or of an unsupported kind."""


class UnsupportedError(LeafageError):
    """Something valid that this build of Leafage cannot do, refused by name."""


class ModelNotFoundError(LeafageError, FileNotFoundError):
    """No model by that name, alias or path."""


class DownloadError(LeafageError):
    """A model could not be fetched or its checksum differs."""


class TemplateError(LeafageError, ValueError):
    """A chat template is missing, does not parse or refused the messages."""


class TraceFileError(LeafageError, ValueError):
    """A trace of requests cannot be used; the message names the file and the line."""


class ExecutorError(LeafageError):
    """The executor could not run a batch; the requests of that batch end with this error."""


class RequestError(LeafageError):
    """A request that was accepted ended with an error instead of an answer.

    `outputs` holds what the requests of the same call gave, where the raiser has it (`LLM.generate`).
    """

    outputs: list[Any] = []  # noqa: RUF012 (set on the instance, never changed in place)
