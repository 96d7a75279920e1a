"""Fits a device's speed to what a server was measured to do with a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from leafage.engine.request_log import HEADER
from leafage.errors import InvalidParameterError, TraceFileError
from leafage.sim.hardware import Hardware
from leafage.sim.json_formats import keys_of
from leafage.sim.least_squares import Floats
from leafage.sim.result import Records, SimResult
from leafage.sim.trace_formats import CORRECT, Source, shown

PERCENTILES = (50, 90, 99)
ROUNDS, TRIES = 5, 3
"""Of Gauss and Newton's method, and of dampings in each."""
PRIOR = 0.02
"""How much an efficiency twice the usual one weighs, beside means that are off by so much: where three means
leave a direction open, the constants stay where they were."""
_BESIDE = 0.1
"""How far from a point its slopes are taken: simulations jump where an admission falls into another step."""
_STEP_SECONDS = 2e-3
_LOWEST = np.array([np.log(0.05), np.log(0.1), 0.0])
_HIGHEST = np.array([0.0, 0.0, 25.0])
_SLOWEST = np.array([np.log(5.0)])
"""How much longer, or shorter, than measured steps may really have taken."""

Simulate = Callable[[Hardware], SimResult]
"""Runs the trace on a device."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a run did, measured or simulated.

    Attributes:
        ttft, tpot: seconds, of each request; TPOT of those with two output tokens or more.
        throughput: output tokens a second, from the first arrival to the last token.
    """

    ttft: Floats
    tpot: Floats
    throughput: float

    @property
    def means(self) -> Floats:
        """Mean TTFT, mean TPOT and throughput."""
        return np.array([self.ttft.mean(), self.tpot.mean(), self.throughput])

    def percentile(self, name: str, share: float) -> float:
        """The seconds that so many per cent of the requests stay below; name: "ttft" or "tpot"."""
        return float(np.percentile(getattr(self, name), share))


def compare(measured: Latencies, simulated: Latencies) -> Iterator[tuple[str, float, float]]:
    """(name, measured, simulated) of means and percentiles: seconds, and throughput in tokens a second."""
    for name in ("ttft", "tpot"):
        means = [float(np.mean(getattr(run, name))) for run in (measured, simulated)]
        yield f"mean {name.upper()}", means[0], means[1]
        for share in PERCENTILES:
            yield (
                f"P{share} {name.upper()}",
                measured.percentile(name, share),
                simulated.percentile(name, share),
            )
    yield "throughput", measured.throughput, simulated.throughput


@dataclass(frozen=True, slots=True)
class TraceFit:
    """The fitted device, and what it does beside what was measured."""

    hardware: Hardware
    measured: Latencies
    simulated: Latencies


def read_measured(path: Path) -> Latencies:
    """What a server did: Leafage's request log; or vLLM's times, as LLMServingSim records them, JSON lines
    with arrival_time by one clock, and queued_ts, first_token_ts and last_token_ts by another. The request
    that was queued soonest after its arrival joins both clocks.

    Raises:
        TraceFileError: the file cannot be read, or a line is not what it must be; it says which.
    """
    source = Source(str(path))
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceFileError(f"{path}: cannot be read", value=error, remedy="give UTF-8 text") from error
    if lines and HEADER in keys_of(lines[0]):
        return _latencies(_logged(lines, source), source)
    return _latencies(_recorded(lines, source), source)


def _recorded(lines: list[str], source: Source) -> list[list[float]]:
    """[arrival, first token, last token, output tokens, sequences] of each request."""
    times: list[list[float]] = []
    for source.line, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = source.object(line)
        row = [
            source.number(name, source.field(record, name))
            for name in ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
        ]
        if not row[1] <= row[2] <= row[3]:
            source.refuse("queued_ts, first_token_ts and last_token_ts are not in order", remedy=CORRECT)
        times.append([*row, source.length("output_toks", source.field(record, "output_toks")), 1])
    between = min((queued - arrival for arrival, queued, *_ in times), default=0.0)
    return [[arrival + between, *rest] for arrival, _, *rest in times]


def _logged(lines: list[str], source: Source) -> list[list[float]]:
    """The same of a request log. Requests without an answer are left out, as when the log is simulated."""
    times: list[list[float]] = []
    first_start = since = 0.0
    for source.line, line in enumerate(lines, 1):
        record = source.object(line)
        if HEADER in record:
            started = source.number("started", source.field(record, "started"))
            first_start = first_start or started
            since = started - first_start
            continue
        answers = source.field(record, "answers")
        if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
            source.refuse("answers is no list of objects", value=shown(answers), remedy=CORRECT)
        outputs = [source.length("tokens", source.field(answer, "tokens")) for answer in answers]
        if not outputs or not outputs[0]:
            continue
        arrival = since + source.number("arrival", source.field(record, "arrival"))
        first = arrival + source.number("ttft", source.field(record, "ttft"))
        last = since + source.number("finished", source.field(record, "finished"))
        times.append([arrival, first, last, sum(outputs), len(outputs)])
    return times


def _latencies(times: list[list[float]], source: Source) -> Latencies:
    if not times:
        raise TraceFileError(
            f"{source.file}: no request was measured",
            value="0 lines",
            limit="at least 1",
            remedy="give a line for each",
        )
    arrival, first, last, outputs, num_sequences = np.array(times).T
    each = outputs / num_sequences
    several = each > 1
    return Latencies(
        ttft=first - arrival,
        tpot=(last - first)[several] / (each[several] - 1),
        throughput=float(outputs.sum() / (last.max() - arrival.min())),
    )


def latencies_of(records: Records) -> Latencies:
    """The same of a simulated run, or of one that was replayed on a real engine.

    Raises:
        InvalidParameterError: requests of the trace do not fit.
    """
    if records.num_refused or records.num_failed or not records.num_requests:
        raise InvalidParameterError(
            "requests of the trace do not fit",
            value=records.num_refused + records.num_failed,
            remedy="raise kv_cache_tokens or max_model_len",
        )
    arrival, first, last = (
        np.array(column) for column in (records.arrival, records.first_token, records.last_token)
    )
    outputs = np.array(records.output_tokens)
    each = outputs / np.array(records.num_sequences)
    several = each > 1
    return Latencies(
        ttft=first - arrival,
        tpot=(last - first)[several] / (each[several] - 1),
        throughput=float(outputs.sum() / (last.max() - arrival.min())),
    )


def fit_trace(
    hardware: Hardware,
    measured: Latencies,
    simulate: Simulate,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TraceFit:
    """Choose compute_efficiency, memory_efficiency and step_seconds so that mean TTFT, mean TPOT and
    throughput come closest to the measured ones, relatively: Gauss and Newton's method with the damping of
    Levenberg and Marquardt. Where the device's steps were measured, choose how many times as long all of them
    took.

    Args:
        hardware: the start; a roofline, or measured steps of the model that was served.
        on_progress: told (simulations done, at most).

    Raises:
        InvalidParameterError: requests of the trace do not fit.
    """
    goal, start = np.log(measured.means), _constants(hardware)
    lowest, highest = (_LOWEST, _HIGHEST) if hardware.steps is None else (-_SLOWEST, _SLOWEST)
    total, done = 1 + ROUNDS * (len(start) + TRIES), 0

    def off(at: Floats) -> tuple[Floats, Latencies]:
        nonlocal done
        run = latencies_of(simulate(_with(hardware, at)).records)
        done += 1
        on_progress(done, total)
        return np.concatenate([np.log(run.means) - goal, PRIOR * (at - start)]), run

    at, damping = start, 1e-3
    best, run = off(at)
    for _ in range(ROUNDS):
        before = best @ best
        slopes = np.empty((len(best), len(at)))
        for index in range(len(at)):
            beside = at.copy()
            beside[index] += -_BESIDE if at[index] + _BESIDE > highest[index] else _BESIDE
            slopes[:, index] = (off(beside)[0] - best) / (beside[index] - at[index])
        for _ in range(TRIES):
            step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(at)), -slopes.T @ best)
            trial = np.clip(at + np.clip(step, -0.7, 0.7), lowest, highest)
            residual, trial_run = off(trial)
            if residual @ residual < best @ best:
                at, best, run, damping = trial, residual, trial_run, damping / 4
                break
            damping *= 10
        if best @ best > 0.9 * before:
            break
    return TraceFit(_with(hardware, at), measured, run)


def _constants(hardware: Hardware) -> Floats:
    """As they are fitted: logarithms of both efficiencies, and the fixed time in its own unit; or that of
    what measured steps are multiplied with."""
    if hardware.steps is not None:
        return np.zeros(1)
    return np.array(
        [
            np.log(hardware.compute_efficiency),
            np.log(hardware.memory_efficiency),
            hardware.step_seconds / _STEP_SECONDS,
        ]
    )


def _with(hardware: Hardware, constants: Floats) -> Hardware:
    if hardware.steps is not None:
        return replace(hardware, steps=hardware.steps.scaled(float(np.exp(constants[0]))))
    compute, memory, step = map(float, constants)
    return replace(
        hardware,
        compute_efficiency=min(float(np.exp(compute)), 1.0),
        memory_efficiency=min(float(np.exp(memory)), 1.0),
        step_seconds=step * _STEP_SECONDS,
    )
