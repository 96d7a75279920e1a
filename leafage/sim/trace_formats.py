"""Formats of trace files: from the lines of a file to the rows of a trace.

A format checks what makes up a row; `trace_file` checks what rows must be to one another.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
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
        prompt: its tokens, where the format tells what prompts share.
    """

    line: int
    time: float | None
    num_prompt: int
    num_output: int
    prompt: Sequence[int] | None = None


@dataclass(slots=True)
class Source:
    """Where rows come from; raises errors that say so."""

    file: str
    line: int = 0

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
        self.refuse(f"{name} is not a finite number", value=_shown(value), remedy=CORRECT)

    def length(self, name: str, value: Any) -> int:
        """A count of tokens.

        Raises:
            TraceFileError: it is no whole number from 1 to `MAX_TOKENS`.
        """
        number = self.number(name, value)
        if number != int(number):
            self.refuse(f"{name} is not a whole number", value=_shown(value), remedy=CORRECT)
        if number < 1:
            what = (
                "is negative"
                if number < 0
                else "is zero: a request has a prompt, and ends after its first token"
            )
            self.refuse(f"{name} {what}", value=int(number), limit="at least 1", remedy=CORRECT)
        if number > MAX_TOKENS:
            self.refuse(
                f"{name} is too large to be true", value=int(number), limit=MAX_TOKENS, remedy=CORRECT
            )
        return int(number)


CORRECT = "correct the line or remove it"


def _shown(value: Any) -> Any:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class TraceFormat(Protocol):
    """How a kind of file is written."""

    name: ClassVar[str]
    looks: ClassVar[str]
    """What it looks like, for those whose file was not recognized."""
    from_first: ClassVar[bool]
    """Its times are a calendar's or an arbitrary clock's: the first request arrives at 0."""

    def matches(self, first_line: str) -> bool:
        """Whether a file that begins so is one of these."""
        ...

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        """Its requests, as they stand.

        Raises:
            TraceFileError: a line is not what it must be.
        """
        ...


# -- CSV -----------------------------------------------------------------------------------------


class _CSV:
    """A table with a header line. Other columns than these are not used."""

    time: ClassVar[str]
    prompt: ClassVar[str]
    output: ClassVar[str]

    def matches(self, first_line: str) -> bool:
        return {self.time, self.prompt, self.output} <= {name.strip() for name in first_line.split(",")}

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        _, first = next(lines)
        header = [name.strip() for name in next(csv.reader([first]))]
        missing = [name for name in (self.time, self.prompt, self.output) if name not in header]
        if missing:
            source.refuse(
                f"the column {missing[0]} is missing",
                value=", ".join(header),
                limit=f"{self.time}, {self.prompt}, {self.output}",
                remedy="add it, or name the file's format",
            )
        at_time, at_prompt, at_output = (header.index(name) for name in (self.time, self.prompt, self.output))
        for number, line in lines:
            cells = line.split(",") if '"' not in line else next(csv.reader([line]))
            if len(cells) != len(header):
                source.refuse(
                    "columns are missing or too many", value=len(cells), limit=len(header), remedy=CORRECT
                )
            yield Row(
                line=number,
                time=self.seconds(cells[at_time].strip(), source),
                num_prompt=source.length(self.prompt, cells[at_prompt]),
                num_output=source.length(self.output, cells[at_output]),
            )

    def seconds(self, text: str, source: Source) -> float:
        """A time as the file writes it."""
        return source.number(self.time, text)


class LengthsCSV(_CSV):
    """Arrivals in seconds, and lengths: the plain way to write a trace."""

    name: ClassVar[str] = "csv"
    looks: ClassVar[str] = "CSV with the columns arrival_s, input_tokens, output_tokens"
    from_first: ClassVar[bool] = False
    time: ClassVar[str] = "arrival_s"
    prompt: ClassVar[str] = "input_tokens"
    output: ClassVar[str] = "output_tokens"


class AzureCSV(_CSV):
    """The Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024) and 2024."""

    name: ClassVar[str] = "azure"
    looks: ClassVar[str] = "CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens"
    from_first: ClassVar[bool] = True
    time: ClassVar[str] = "TIMESTAMP"
    prompt: ClassVar[str] = "ContextTokens"
    output: ClassVar[str] = "GeneratedTokens"

    _STAMP: ClassVar[re.Pattern[str]] = re.compile(
        r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(\.\d+)?(?:(Z)|([+-])(\d\d):?(\d\d))?"
    )

    def seconds(self, text: str, source: Source) -> float:
        """Seconds since the start of 2023, which leaves a float its microseconds."""
        found = self._STAMP.fullmatch(text)
        if found is None:
            source.refuse(
                "TIMESTAMP is not a time",
                value=_shown(text),
                limit="2023-11-16 18:17:03.9799600",
                remedy=CORRECT,
            )
        year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
        try:
            days = date(year, month, day).toordinal() - _EPOCH
        except ValueError:
            source.refuse("TIMESTAMP is no day of the calendar", value=_shown(text), remedy=CORRECT)
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
        if found[9]:
            east = (int(found[10]) * 60 + int(found[11])) * 60
            seconds -= east if found[9] == "+" else -east
        return seconds + float(found[7] or 0)


_EPOCH = date(2023, 1, 1).toordinal()

FORMATS: dict[str, TraceFormat] = {format.name: format for format in (AzureCSV(), LengthsCSV())}
