"""What formats of trace files have in common: from the lines of a file to the rows of a trace.

A format checks what makes up a row; `trace_file` checks what rows must be to one another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

from leafage.errors import TraceFileError
from leafage.sim.distributions import MAX_TOKENS

Lines = Iterator[tuple[int, str]]
"""(number from 1, text) of each line that is not blank."""


@dataclass(slots=True)
class Row:
    """One request of a trace file.

    Attributes:
        line: where it stands.
        time: of its arrival, in seconds; None: the format does not tell.
        num_prompt, num_output: lengths in tokens.
        prompt, output: their tokens, where the format tells what is shared. Other tokens are below
            `NAMED_TOKENS`, so these are not.
        n, beam_width, priority, tenant: as in `SimRequest`.
    """

    line: int
    time: float | None
    num_prompt: int
    num_output: int
    prompt: Sequence[int] | None = None
    output: Sequence[int] | None = None
    n: int = 1
    beam_width: int | None = None
    priority: int = 0
    tenant: str | None = None


NAMED_TOKENS = 1 << 47
"""Ids from here on are for formats that say which tokens are equal. Those of one request's other sequences
lie `SIBLING` (1 << 48) and more above the fresh ones, and so apart from both."""


@dataclass(slots=True)
class Source:
    """Where rows come from; raises errors that say so.

    Attributes:
        line: the one that is being read.
        num_left_out: requests that ended without an answer when they were recorded.
    """

    file: str
    line: int = 0
    num_left_out: int = 0

    def refuse(
        self, what: str, *, value: object = None, limit: object = None, remedy: str | None = None
    ) -> NoReturn:
        """Raises:
        TraceFileError: always.
        """
        raise TraceFileError(
            f"{self.file}, line {self.line}: {what}", value=value, limit=limit, remedy=remedy
        )

    def number(self, name: str, value: Any) -> float:
        """A finite number, from text or from JSON.

        Raises:
            TraceFileError: it is none.
        """
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
            if math.isfinite(number):
                return number
        self.refuse(f"{name} is not a finite number", value=shown(value), remedy=CORRECT)

    def length(self, name: str, value: Any) -> int:
        """A count of tokens.

        Raises:
            TraceFileError: it is no whole number from 1 to `MAX_TOKENS`.
        """
        if isinstance(value, str) and value.isdecimal() and len(value) < 9:
            value = int(value)  # the common case, quickly
        if type(value) is int and 1 <= value <= MAX_TOKENS:
            return value
        number = self.number(name, value)
        if number != int(number):
            self.refuse(f"{name} is not a whole number", value=shown(value), remedy=CORRECT)
        if number < 1:
            what = (
                "is negative"
                if number < 0
                else "is zero: a request has a prompt, and ends after its first token"
            )
            self.refuse(f"{name} {what}", value=int(number), limit="at least 1", remedy=CORRECT)
        if number > MAX_TOKENS:
            self.refuse(
                f"{name} is too large to be true", value=shown(value), limit=MAX_TOKENS, remedy=CORRECT
            )
        return int(number)

    def object(self, line: str) -> dict[str, Any]:
        """A JSON object.

        Raises:
            TraceFileError: the line is none.
        """
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            self.refuse(f"not JSON: {reason}", value=shown(line), remedy=CORRECT)
        if not isinstance(found, dict):
            self.refuse("not a JSON object", value=shown(line), remedy=CORRECT)
        return found

    def field(self, record: dict[str, Any], name: str) -> Any:
        """A field of a JSON object.

        Raises:
            TraceFileError: there is none by that name.
        """
        if name not in record:
            self.refuse(f"the field {name} is missing", value=shown(", ".join(record)), remedy=CORRECT)
        return record[name]


CORRECT = "correct the line or remove it"


def shown(value: Any) -> str:
    """A value, cut where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class TraceFormat(Protocol):
    """How a kind of file is written."""

    name: ClassVar[str]
    looks: ClassVar[str]
    """What it looks like, for those whose file was not recognized."""
    from_first: ClassVar[bool]
    """Its times are a calendar's or an arbitrary clock's: the first request arrives at 0."""
    tells_answers: ClassVar[bool]
    """It says how many answers each request has."""

    def matches(self, first_line: str) -> bool:
        """Whether a file that begins so is one of these."""
        ...

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        """Its requests, as they stand.

        Raises:
            TraceFileError: a line is not what it must be.
        """
        ...
