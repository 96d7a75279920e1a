from __future__ import annotations

from pathlib import Path

import pytest

from leafage.errors import TraceFileError
from leafage.sim.trace_file import TraceFile
from tests.sim.public_traces import TRACES, needs_traces

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def trace(folder: Path, text: str, **settings: object) -> TraceFile:
    path = folder / "trace"
    path.write_text(text)
    return TraceFile(path, **settings)


def test_azure_times_count_from_the_first_request(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        AZURE + "2023-12-31 23:59:59.9000000,374,44\n2024-01-01 00:00:01.1500000,396,109\n"
        "2024-02-29 00:00:00.000000+00:00,5,6\n2024-02-29 02:00:00+02:00,5,6\n"
        "2024-02-28T19:00:00-05:00,5,6\n",
    )
    assert [r.arrival for r in made] == pytest.approx(
        [0, 1.25, 59 * 86400 + 0.1, 59 * 86400 + 0.1, 59 * 86400 + 0.1]
    )
    assert [(len(r.prompt), len(r.output)) for r in made][:2] == [(374, 44), (396, 109)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2023-02-30 00:00:00,5,6\n", "line 2: TIMESTAMP is no day of the calendar; got '2023-02-30"),
        ("2023-02-03 24:00:00,5,6\n", "line 2: TIMESTAMP is no time of the day; got '2023-02-03"),
        ("yesterday,5,6\n", "line 2: TIMESTAMP is not a time; got 'yesterday'; limit: 2023-11-16"),
        ("2023-01-02 00:00:00,5,6\n2023-01-01 00:00:00,5,6\n", "line 3: .* before that of"),
    ],
)
def test_bad_azure_times_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        trace(tmp_path, AZURE + text)


def test_a_format_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="line 1: the column TIMESTAMP is missing; got 'arrival_s, "):
        trace(tmp_path, "arrival_s,input_tokens,output_tokens\n0,1,2\n", format="azure")
    assert len(trace(tmp_path, "arrival_s,input_tokens,output_tokens\n0,1,2\n", format="csv")) == 1


def test_columns_may_come_in_any_order_quoted_and_beside_others(tmp_path: Path) -> None:
    made = trace(tmp_path, 'model,output_tokens, input_tokens,arrival_s\n"a, b",2,"3", 0.5\n')
    assert [(r.arrival, len(r.prompt), len(r.output)) for r in made] == [(0.5, 3, 2)]


@needs_traces
@pytest.mark.parametrize(
    ("name", "num_requests", "last"),
    [
        ("azure_llm_2023_conv.csv", 19_366, 3501.7),
        ("azure_llm_2023_code.csv", 8_819, 3435.9),
        ("sharegpt_lengths_300.csv", 300, 30.0),
    ],
)
def test_public_traces_are_read_whole(name: str, num_requests: int, last: float) -> None:
    requests = list(TraceFile(TRACES / name))
    assert len(requests) == num_requests and requests[-1].arrival == pytest.approx(last, rel=0.05)
