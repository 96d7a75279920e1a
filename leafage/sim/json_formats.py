"""Traces as JSON lines, and results of serving benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from leafage.sim.trace_formats import CORRECT, NAMED_TOKENS, Lines, Row, Source, shown
from leafage.sim.workload import TokenRuns


def keys_of(line: str) -> frozenset[str]:
    """Names of the fields of a JSON object, none if the line is no such thing."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(found) if isinstance(found, dict) else frozenset()


class Mooncake:
    """The traces of Mooncake (Qin et al., FAST 2025). Each id stands for 512 tokens of a prompt, the last for
    what is left, and for all tokens before them: equal ids are equal prefixes."""

    name: ClassVar[str] = "mooncake"
    looks: ClassVar[str] = "JSON lines with timestamp (ms), input_length, output_length, hash_ids"
    from_first: ClassVar[bool] = False
    tells_answers: ClassVar[bool] = False

    BLOCK: ClassVar[int] = 512
    MAX_ID: ClassVar[int] = (NAMED_TOKENS // BLOCK) - 1

    def matches(self, first_line: str) -> bool:
        return keys_of(first_line) >= {"timestamp", "input_length", "output_length", "hash_ids"}

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        for number, line in lines:
            record = source.object(line)
            num_prompt = source.length("input_length", source.field(record, "input_length"))
            yield Row(
                line=number,
                time=source.number("timestamp", source.field(record, "timestamp")) / 1000,
                num_prompt=num_prompt,
                num_output=source.length("output_length", source.field(record, "output_length")),
                prompt=self._tokens(source.field(record, "hash_ids"), num_prompt, source),
            )

    def _tokens(self, ids: Any, num_tokens: int, source: Source) -> TokenRuns:
        size = self.BLOCK
        whole = isinstance(ids, list) and set(map(type, ids)) <= {int}
        if not whole or (ids and not 0 <= min(ids) <= max(ids) <= self.MAX_ID):
            limit = f"a list of whole numbers from 0 to {self.MAX_ID}"
            source.refuse("hash_ids are wrong", value=shown(ids), limit=limit, remedy=CORRECT)
        if len(ids) != -(-num_tokens // size):
            source.refuse(
                f"the number of hash_ids does not fit an input_length of {num_tokens}",
                value=len(ids),
                limit=f"{-(-num_tokens // size)}, one for each {size} tokens",
                remedy=CORRECT,
            )
        runs: list[range] = []
        first = 0  # of the ids that count up one by one: those are one run of tokens
        for i in range(1, len(ids) + 1):
            if i == len(ids) or ids[i] != ids[i - 1] + 1:
                start = NAMED_TOKENS + ids[first] * size
                runs.append(range(start, start + min(i * size, num_tokens) - first * size))
                first = i
        return TokenRuns(*runs)


class RecordedVLLM:
    """Requests as vLLM served them, one a line, as LLMServingSim records them."""

    name: ClassVar[str] = "vllm-requests"
    looks: ClassVar[str] = "JSON lines with arrival_time (s), input_toks, output_toks"
    from_first: ClassVar[bool] = True
    tells_answers: ClassVar[bool] = False

    def matches(self, first_line: str) -> bool:
        return keys_of(first_line) >= {"arrival_time", "input_toks", "output_toks"}

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        for number, line in lines:
            record = source.object(line)
            yield Row(
                line=number,
                time=source.number("arrival_time", source.field(record, "arrival_time")),
                num_prompt=source.length("input_toks", source.field(record, "input_toks")),
                num_output=source.length("output_toks", source.field(record, "output_toks")),
            )


class ServingBenchmark:
    """What `vllm bench serve --save-result --save-detailed` and `sglang.bench_serving --output-details`
    write: one object with lists of lengths. vLLM's say when requests started (`start_times`), SGLang's do
    not. Requests that failed then are left out. All of it is in memory at once: it is one line of JSON."""

    name: ClassVar[str] = "bench-serving"
    looks: ClassVar[str] = "JSON with the lists input_lens, output_lens and, where recorded, start_times"
    from_first: ClassVar[bool] = True
    tells_answers: ClassVar[bool] = False

    def matches(self, first_line: str) -> bool:
        return first_line.strip() == "{" or keys_of(first_line) >= {"duration", "completed"}

    def rows(self, lines: Lines, source: Source) -> Iterator[Row]:
        run, line = self._run(list(lines), source)
        source.line = line
        columns = {name: run.get(name) for name in ("input_lens", "output_lens", "start_times", "errors")}
        for name, column in columns.items():
            if column is None and name in ("start_times", "errors"):
                continue
            if not isinstance(column, list) or len(column) != len(columns["input_lens"] or ()):
                source.refuse(
                    f"{name} is no list, or not as long as input_lens", value=shown(column), remedy=CORRECT
                )
        starts, errors = columns["start_times"], columns["errors"]
        rows = []
        for i, (num_prompt, num_output) in enumerate(zip(run["input_lens"], run["output_lens"], strict=True)):
            if errors and errors[i]:
                source.num_left_out += 1
                continue
            rows.append(
                Row(
                    line=line,
                    time=None if starts is None else source.number(f"start_times[{i}]", starts[i]),
                    num_prompt=source.length(f"input_lens[{i}]", num_prompt),
                    num_output=source.length(f"output_lens[{i}]", num_output),
                )
            )
        rows.sort(key=lambda row: row.time or 0.0)  # they are in the order of the data set
        yield from rows

    def _run(self, lines: list[tuple[int, str]], source: Source) -> tuple[dict[str, Any], int]:
        """The only run with lists, and its line."""
        if lines[0][1].strip() == "{":  # written over several lines
            runs = [(source.object("\n".join(line for _, line in lines)), lines[0][0])]
        else:
            runs = []
            for number, line in lines:
                source.line = number
                runs.append((source.object(line), number))
        detailed = [(run, number) for run, number in runs if "input_lens" in run and "output_lens" in run]
        if not detailed:
            source.refuse(
                "the result has no lengths of single requests",
                value=shown(", ".join(runs[0][0])),
                remedy="run vLLM's benchmark with --save-detailed, SGLang's with --output-details",
            )
        if len(detailed) > 1:
            source.refuse(
                "the file holds more than one run of the benchmark",
                value=f"lines {', '.join(str(number) for _, number in detailed)}",
                limit=1,
                remedy="keep one line",
            )
        return detailed[0]
