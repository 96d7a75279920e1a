"""Traces as CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import date
from functools import cache
from typing import ClassVar

from leafage.sim.trace_formats import CORRECT, Lines, Row, Source, shown


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
    tells_answers: ClassVar[bool] = False
    time: ClassVar[str] = "arrival_s"
    prompt: ClassVar[str] = "input_tokens"
    output: ClassVar[str] = "output_tokens"


class AzureCSV(_CSV):
    """The Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024) and 2024."""

    name: ClassVar[str] = "azure"
    looks: ClassVar[str] = "CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens"
    from_first: ClassVar[bool] = True
    tells_answers: ClassVar[bool] = False
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
                value=shown(text),
                limit="2023-11-16 18:17:03.9799600",
                remedy=CORRECT,
            )
        try:
            days = _days(text[:10])
        except ValueError:
            source.refuse("TIMESTAMP is no day of the calendar", value=shown(text), remedy=CORRECT)
        hour, minute, second = int(found[4]), int(found[5]), int(found[6])
        if hour > 23 or minute > 59 or second > 59:
            source.refuse("TIMESTAMP is no time of the day", value=shown(text), remedy=CORRECT)
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
        if found[9]:
            east = (int(found[10]) * 60 + int(found[11])) * 60
            seconds -= east if found[9] == "+" else -east
        return seconds + float(found[7] or 0)


_EPOCH = date(2023, 1, 1).toordinal()


@cache
def _days(text: str) -> int:
    """Days from `_EPOCH` to YYYY-MM-DD; a trace has few of them."""
    return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH
