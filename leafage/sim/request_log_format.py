"""Leafage's own request log (`engine/request_log.py`) as a trace."""

from __future__ import annotations

import heapq
import string
from collections.abc import Iterator
from typing import Any, ClassVar

from leafage.core.sampling_params import MAX_BEAM_WIDTH, MAX_SEQUENCES
from leafage.engine.request_log import HASH_BYTES, HEADER, MAX_BLOCK_SIZE, VERSION
from leafage.sim.json_formats import keys_of
from leafage.sim.trace_formats import CORRECT, Lines, Row, Source, shown
from leafage.sim.workload import FreshTokens, TokenRuns

HASHED_TOKENS = 1 << 60
"""Ids from here on stand for blocks by their hash, of which `HASH_BITS` count."""
HASH_BITS = 51
_DIGITS = 2 * HASH_BYTES
_HEXADECIMAL = frozenset(string.hexdigits)


class RequestLogFormat:
    """Equal block hashes become equal tokens, in prompts and in answers; what is not in a full block is
    shared with nobody. The first answer of a request stands for all. Requests that ended before their first
    token are left out. Only requests that ran at the same time are in memory at once."""

    name: ClassVar[str] = "leafage"
    looks: ClassVar[str] = f'JSON lines that begin with {{"{HEADER}": {VERSION}, ...}}'
    from_first: ClassVar[bool] = False
    tells_answers: ClassVar[bool] = True

    def matches(self, first_line: str) -> bool:
        return HEADER in keys_of(first_line)

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        tokens = FreshTokens()
        ended: list[tuple[float, float, int, Row]] = []  # by arrival
        header: _Header | None = None
        first_start = 0.0
        for number, line in lines:
            record = source.object(line)
            if HEADER in record:
                start, before = _Header(record, source), header
                first_start = start.started if before is None else first_start
                header = start
                while ended:
                    yield heapq.heappop(ended)[3]
                continue
            if header is None:
                source.refuse(
                    "the log does not begin with its header", value=shown(line), remedy="restore the line"
                )
            since = header.started - first_start
            row = _row(record, number, since, header.block_size, tokens, source)
            if row is None:
                source.num_left_out += 1
            else:
                assert row.time is not None
                place = source.number("number", source.field(record, "number"))
                heapq.heappush(ended, (row.time, place, number, row))
            oldest = since + source.number("oldest", source.field(record, "oldest"))
            while ended and ended[0][0] < oldest:  # at the same time as the oldest more may have come
                yield heapq.heappop(ended)[3]
        while ended:
            yield heapq.heappop(ended)[3]


class _Header:
    def __init__(self, record: dict[str, Any], source: Source) -> None:
        if record[HEADER] != VERSION:
            source.refuse(
                "the log is of another version",
                value=shown(record[HEADER]),
                limit=VERSION,
                remedy="use the Leafage that wrote it",
            )
        self.started = source.number("started", source.field(record, "started"))
        size = source.field(record, "block_size")
        if type(size) is not int or not 1 <= size <= MAX_BLOCK_SIZE:
            source.refuse(
                "block_size is wrong", value=shown(size), limit=f"1 to {MAX_BLOCK_SIZE}", remedy=CORRECT
            )
        self.block_size: int = size


def _row(
    record: dict[str, Any], line: int, since: float, block_size: int, tokens: FreshTokens, source: Source
) -> Row | None:
    """A request; None: it had no answer."""
    num_prompt = source.length("prompt_tokens", source.field(record, "prompt_tokens"))
    answers = source.field(record, "answers")
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        source.refuse("answers is no list of objects", value=shown(answers), remedy=CORRECT)
    if not answers or source.field(answers[0], "tokens") == 0:
        return None
    num_output = source.length("tokens", answers[0]["tokens"])
    num_full = num_prompt // block_size
    prompt_blocks = _hashes("prompt_blocks", source.field(record, "prompt_blocks"), num_full, source)
    num_behind = (num_prompt + num_output) // block_size - num_full
    blocks = prompt_blocks + _hashes("blocks", source.field(answers[0], "blocks"), num_behind, source)
    parts = [
        range(first, first + block_size) for first in (_first_token(block, block_size) for block in blocks)
    ]
    parts.append(tokens.take((num_prompt + num_output) % block_size))
    cut, behind = num_full, num_prompt % block_size
    beam_width = source.field(record, "beam_width")
    tenant = source.field(record, "tenant")
    if not isinstance(tenant, str):
        source.refuse("tenant is no text", value=shown(tenant), remedy=CORRECT)
    return Row(
        line=line,
        time=since + source.number("arrival", source.field(record, "arrival")),
        num_prompt=num_prompt,
        num_output=num_output,
        prompt=TokenRuns(*parts[:cut], parts[cut][:behind]),
        output=TokenRuns(parts[cut][behind:], *parts[cut + 1 :]),
        n=_count("n", source.field(record, "n"), MAX_SEQUENCES, source),
        beam_width=None if beam_width is None else _count("beam_width", beam_width, MAX_BEAM_WIDTH, source),
        priority=int(source.number("priority", source.field(record, "priority"))),
        tenant=tenant,
    )


def _first_token(block: str, block_size: int) -> int:
    return HASHED_TOKENS + (int(block, 16) & ((1 << HASH_BITS) - 1)) * block_size


def _hashes(name: str, text: Any, count: int, source: Source) -> list[str]:
    if not isinstance(text, str) or len(text) != count * _DIGITS or not _HEXADECIMAL.issuperset(text):
        limit = f"{count} hashes of {_DIGITS} hexadecimal digits each"
        source.refuse(f"{name} does not fit the lengths", value=shown(text), limit=limit, remedy=CORRECT)
    return [text[i : i + _DIGITS] for i in range(0, len(text), _DIGITS)]


def _count(name: str, value: Any, highest: int, source: Source) -> int:
    if type(value) is not int or not 1 <= value <= highest:
        source.refuse(f"{name} is out of range", value=shown(value), limit=f"1 to {highest}", remedy=CORRECT)
    return value
