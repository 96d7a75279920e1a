"""A recorded trace as a workload: read line by line, as often as needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from leafage.errors import InvalidParameterError, TraceFileError
from leafage.sim.arrivals import KINDS
from leafage.sim.csv_formats import AzureCSV, LengthsCSV
from leafage.sim.generated import Generated, check_at_least, check_sequences, setting
from leafage.sim.json_formats import Mooncake, RecordedVLLM, ServingBenchmark
from leafage.sim.request_log_format import RequestLogFormat
from leafage.sim.trace_formats import CORRECT, Lines, Row, Source, TraceFormat
from leafage.sim.workload import FreshTokens, SimRequest

RECORDED = "trace"
_FORMATS: tuple[TraceFormat, ...] = (
    AzureCSV(),
    LengthsCSV(),
    Mooncake(),
    RecordedVLLM(),
    ServingBenchmark(),
    RequestLogFormat(),
)
FORMATS = {format.name: format for format in _FORMATS}


@dataclass(frozen=True, kw_only=True)
class TraceFile(Generated):
    """The requests of a file. What will be used of it is checked at once; a line at a time is in memory.

    Attributes:
        path: of the file.
        num_left_out: its requests that had no answer when they were recorded, and have no part in this.

    Raises:
        TraceFileError: the file cannot be read, is in no known format, or a line is wrong; it says which.
        InvalidParameterError: a setting is out of range, or means nothing beside the others.
    """

    path: Path = field(kw_only=False)
    num_left_out: int = field(init=False, default=0)
    format: str | None = setting(None, f"how the file is written: {', '.join(FORMATS)}; default: found out")
    arrivals: str = setting(
        RECORDED, f"when: {RECORDED}, as recorded; or lengths of the file at times of {KINDS}"
    )
    rate_scale: float = setting(1.0, "so many times as many requests a second as recorded")
    start: float = setting(0.0, "seconds of the trace that are left out at its beginning")
    end: float | None = setting(None, "second of the trace at which it ends")
    max_requests: int | None = setting(None, "the first so many requests only")
    n: int = setting(1, "answers to each prompt, drawn side by side")
    beam_width: int | None = setting(None, "answer by beam search with so many beams")

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser())
        if self.arrivals != RECORDED:
            super().__post_init__()
        self._check_settings()
        format_ = self._find_format()
        object.__setattr__(self, "_format", format_)
        if format_.tells_answers and (self.n != 1 or self.beam_width is not None):
            raise InvalidParameterError(
                "the file says itself how many answers each request has",
                value=f"n = {self.n}, beam_width = {self.beam_width}",
                remedy="leave n and beam_width out",
            )
        source = Source(str(self.path))
        object.__setattr__(self, "_num_requests", sum(1 for _ in self._rows(source)))
        object.__setattr__(self, "num_left_out", source.num_left_out)
        if not len(self) and not self.start and self.end is None:
            raise TraceFileError(f"{self.path} holds no request", remedy="give a file with requests")
        if not len(self):
            raise TraceFileError(
                f"{self.path}: no request is left",
                value=f"start = {self.start}, end = {self.end}",
                remedy="widen the window, or give another file",
            )

    def __len__(self) -> int:
        num_requests: int = self._num_requests  # type: ignore[attr-defined]
        return num_requests

    def __iter__(self) -> Iterator[SimRequest]:
        tokens = FreshTokens()
        if self.arrivals == RECORDED:
            times: Iterator[float | None] = itertools.repeat(None)
        else:
            times = self.arrival_times()
        format_: TraceFormat = self._format  # type: ignore[attr-defined]
        rows = self._rows(Source(str(self.path)))
        for number, (row, time) in enumerate(zip(rows, times, strict=False)):
            if time is None:
                assert row.time is not None
                time = (row.time - self.start) / self.rate_scale
            yield SimRequest(
                request_id=str(number),
                arrival=time,
                prompt=tokens.take(row.num_prompt) if row.prompt is None else row.prompt,
                output=tokens.take(row.num_output) if row.output is None else row.output,
                n=row.n if format_.tells_answers else self.n,
                beam_width=row.beam_width if format_.tells_answers else self.beam_width,
                priority=row.priority,
                tenant=row.tenant,
            )

    # -- settings --------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        if self.arrivals == RECORDED:
            for name, unset in (("rate", None), ("cv", None), ("seed", 0)):
                if getattr(self, name) != unset:
                    raise InvalidParameterError(
                        f"{name} has no effect on the recorded arrivals of a trace",
                        value=getattr(self, name),
                        remedy="set arrivals as well; rate_scale stretches the recorded ones",
                    )
        elif self.rate_scale != 1:
            raise InvalidParameterError(
                "rate_scale is for recorded arrivals",
                value=self.rate_scale,
                remedy=f"set arrivals to {RECORDED}",
            )
        if not 0 < self.rate_scale < float("inf"):
            raise InvalidParameterError("rate_scale must be above 0", value=self.rate_scale)
        if not 0 <= self.start < float("inf"):
            raise InvalidParameterError("start is out of range", value=self.start, limit="at least 0")
        if self.end is not None and not self.end > self.start:
            raise InvalidParameterError(
                "end must be above start", value=self.end, limit=f"start = {self.start}"
            )
        if self.max_requests is not None:
            check_at_least("max_requests", self.max_requests, 1)
        if self.format is not None and self.format not in FORMATS:
            raise InvalidParameterError("unknown format", value=self.format, limit=", ".join(FORMATS))
        check_sequences(self.n, self.beam_width)

    def _find_format(self) -> TraceFormat:
        if self.format is not None:
            return FORMATS[self.format]
        source = Source(str(self.path))
        with self._open(source) as lines:
            number, first = next(lines, (0, ""))
        for known in FORMATS.values():
            if known.matches(first):
                return known
        if not number:
            raise TraceFileError(f"{self.path} is empty", remedy="give a file with requests")
        if first.lstrip().startswith("{"):
            source.object(first)
        raise TraceFileError(
            f"{self.path}, line {number}: the format is not known",
            value=first[:80],
            limit="; ".join(f"{known.name}: {known.looks}" for known in FORMATS.values()),
            remedy="convert the file, or name its format",
        )

    # -- reading ---------------------------------------------------------------------------------

    def _rows(self, source: Source) -> Iterator[Row]:
        """Those of the window, checked; recorded times count from the start of the trace."""
        format_: TraceFormat = self._format  # type: ignore[attr-defined]
        with self._open(source) as lines:
            found = self._in_window(self._in_order(format_.rows(lines, source), format_, source), source)
            yield from itertools.islice(found, self.max_requests)

    def _in_order(self, rows: Iterator[Row], format_: TraceFormat, source: Source) -> Iterator[Row]:
        first: float | None = None
        last = 0.0
        last_line = 0
        for row in rows:
            if row.time is not None:
                if first is None:
                    first = row.time if format_.from_first else 0.0
                row.time -= first
                if row.time < last:
                    source.refuse(
                        "the time of arrival is before that of the request above"
                        if last_line
                        else "negative time",
                        value=round(row.time, 6),
                        limit=f"at least {last:g} s" + (f", of line {last_line}" if last_line else ""),
                        remedy="sort the file by arrival" if last_line else CORRECT,
                    )
                last, last_line = row.time, row.line
            yield row

    def _in_window(self, rows: Iterator[Row], source: Source) -> Iterator[Row]:
        for row in rows:
            if row.time is None:
                if self.arrivals == RECORDED or self.start or self.end is not None:
                    source.refuse(
                        "the file does not say when requests arrived",
                        remedy="set arrivals (and rate), and neither start nor end",
                    )
            elif row.time < self.start:
                continue
            elif self.end is not None and row.time >= self.end:
                return
            yield row

    @contextmanager
    def _open(self, source: Source) -> Iterator[Lines]:
        """The lines of the file that are not blank. `source` follows them."""

        def lines() -> Lines:
            for number, line in enumerate(file, start=1):
                source.line = number
                if not line.isspace():
                    yield number, line.rstrip("\r\n")

        try:
            with self.path.open(encoding="utf-8-sig") as file:
                yield lines()
        except UnicodeDecodeError as error:
            raise TraceFileError(
                f"{self.path} is not a text file: {error.reason}", remedy="give UTF-8 text"
            ) from error
        except OSError as error:
            raise TraceFileError(f"{self.path} cannot be read: {error.strerror}") from error
