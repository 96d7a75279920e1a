from __future__ import annotations

import tracemalloc
from collections import deque
from pathlib import Path

import pytest

from leafage.errors import InvalidParameterError, TraceFileError
from leafage.sim.trace_file import TraceFile

HEADER = "arrival_s,input_tokens,output_tokens\n"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, HEADER + "".join(f"{i},{10 + i},{1 + i}\n" for i in range(10)))


def test_requests_are_as_recorded(path: Path) -> None:
    requests = list(TraceFile(path))
    assert [(r.request_id, r.arrival) for r in requests] == [(str(i), float(i)) for i in range(10)]
    assert [(len(r.prompt), len(r.output)) for r in requests] == [(10 + i, 1 + i) for i in range(10)]
    tokens = [token for r in requests for token in [*r.prompt, *r.output]]
    assert len(set(tokens)) == len(tokens), "prompts share nothing that the file does not tell"


def test_the_window_counts_from_its_start_and_time_can_be_stretched(path: Path) -> None:
    requests = list(TraceFile(path, start=3.0, end=8.0, rate_scale=2.0))
    assert [(r.arrival, len(r.prompt)) for r in requests] == [((i - 3) / 2, 10 + i) for i in range(3, 8)]
    limited = TraceFile(path, start=3.0, max_requests=2)
    assert len(limited) == 2 and [len(r.prompt) for r in limited] == [13, 14]


def test_lengths_of_a_file_at_other_arrivals(path: Path) -> None:
    made = TraceFile(path, arrivals="constant", rate=2.0, n=3)
    assert [(r.arrival, len(r.prompt), r.n) for r in made] == [(i / 2, 10 + i, 3) for i in range(10)]
    assert list(TraceFile(path, arrivals="poisson", seed=1)) != list(
        TraceFile(path, arrivals="poisson", seed=2)
    )


def test_memory_is_flat_in_the_length_of_the_file(tmp_path: Path) -> None:
    long = write(tmp_path, HEADER + "".join(f"{i},{10},{10}\n" for i in range(4_000)))
    tracemalloc.start()
    try:
        deque(TraceFile(long), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 150_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace.csv is empty. Give a file"),
        ("\n\n", "trace.csv is empty"),
        (HEADER, "trace.csv holds no request. Give a file"),
        (
            "arrival_s,input_tokens\n0,1\n",
            "line 1: the format is not known; got 'arrival_s,input_tokens'; .*csv",
        ),
        (
            HEADER + "0,5,5\n\n1,-3,5\n",
            "trace.csv, line 4: input_tokens is negative; got -3; limit: at least 1. ",
        ),
        (HEADER + "0,5,0\n", "line 2: output_tokens is zero.*got 0; limit: at least 1"),
        (HEADER + "0,5,nan\n", "line 2: output_tokens is not a finite number; got 'nan'"),
        (HEADER + "nan,5,5\n", "line 2: arrival_s is not a finite number; got 'nan'"),
        (HEADER + "inf,5,5\n", "line 2: arrival_s is not a finite number"),
        (HEADER + "0,5.5,5\n", "line 2: input_tokens is not a whole number; got '5.5'"),
        (
            HEADER + "0,1e300,5\n",
            "line 2: input_tokens is too large to be true; got '1e300'; limit: 16777216",
        ),
        (HEADER + "0,,5\n", "line 2: input_tokens is not a finite number; got ''"),
        (
            HEADER + "0,5,99999999999\n",
            "line 2: output_tokens is too large to be true; got '99999999999'; limit: 16",
        ),
        (HEADER + "0,5\n", "line 2: columns are missing or too many; got 2; limit: 3"),
        (
            HEADER + "5,5,5\n4,5,5\n",
            "line 3: .* before that of the request above; got 4.0; limit: at least 5 s, of line 2. Sort",
        ),
        (HEADER + "-1,5,5\n", "line 2: negative time; got -1.0"),
    ],
)
def test_bad_traces_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        TraceFile(write(tmp_path, text))


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\xff\xfe\x00\x81" * 10)
    with pytest.raises(TraceFileError, match="is not a text file"):
        TraceFile(tmp_path / "model.bin")
    with pytest.raises(TraceFileError, match="cannot be read: No such file"):
        TraceFile(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 2.0}, "rate has no effect on the recorded arrivals"),
        ({"seed": 2}, "seed has no effect on the recorded arrivals"),
        ({"arrivals": "poisson", "rate_scale": 2.0}, "rate_scale is for recorded arrivals"),
        ({"rate_scale": 0.0}, "rate_scale must be above 0"),
        ({"start": -1.0}, "start is out of range"),
        ({"start": 5.0, "end": 5.0}, "end must be above start"),
        ({"max_requests": 0}, "max_requests is out of range"),
        ({"format": "xml"}, "unknown format; got 'xml'; limit: azure, csv"),
        ({"arrivals": "bursts"}, "unknown arrivals"),
        ({"n": 0}, "n is out of range"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        TraceFile(path, **settings)


def test_an_empty_window_is_refused(path: Path) -> None:
    with pytest.raises(TraceFileError, match="no request is left; got 'start = 50"):
        TraceFile(path, start=50.0)
