from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.core.radix_tree import RadixTree
from leafage.errors import TraceFileError
from leafage.sim.json_formats import Mooncake
from leafage.sim.trace_file import TraceFile
from leafage.sim.trace_formats import Source
from leafage.sim.workload import SimRequest, TokenRuns
from tests.sim.public_traces import TRACES, needs_traces
from tests.sim.runs import run, small_simulation


def trace(folder: Path, *lines: Any, **settings: Any) -> TraceFile:
    path = folder / "trace"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return TraceFile(path, **settings)


def request(time: float, num_prompt: int, *hash_ids: int, num_output: int = 5) -> dict[str, Any]:
    return {
        "timestamp": time,
        "input_length": num_prompt,
        "output_length": num_output,
        "hash_ids": list(hash_ids),
    }


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


# -- Mooncake ------------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(IDS, IDS, st.integers(1, 512), st.integers(1, 512))
def test_mooncake_prompts_share_what_their_ids_share(
    a: list[int], b: list[int], last_a: int, last_b: int
) -> None:
    source, format_ = Source("trace"), Mooncake()
    lengths = [512 * (len(ids) - 1) + last for ids, last in ((a, last_a), (b, last_b))]
    prompts = [list(format_._tokens(ids, n, source)) for ids, n in zip((a, b), lengths, strict=True)]
    assert [len(prompt) for prompt in prompts] == lengths
    assert common(*prompts) == min(512 * common(a, b), *lengths)


def test_mooncake_sharing_is_what_the_radix_tree_finds(tmp_path: Path) -> None:
    """Whole blocks, a last one that is not full, and a prompt that is found whole but for its last token."""
    made = trace(
        tmp_path,
        request(0, 1200, 0, 1, 2),
        request(900_000, 1536, 0, 1, 3),
        request(900_000, 1200, 0, 1, 2),
        request(900_000, 700, 0, 4),
    )
    assert [r.arrival for r in made] == [0, 900, 900, 900]
    assert not set(made_outputs := [t for r in made for t in r.output]) & {t for r in made for t in r.prompt}
    assert len(set(made_outputs)) == 20
    _, ended = run(made, small_simulation(num_blocks=512))
    cached = {one.asked.request_id: one.request.num_cached for one in ended}
    assert cached == {"0": 0, "1": 1024, "2": 1199, "3": 512}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON: Expecting property name"),
        ("[1]", "line 2: not a JSON object; got '"),
        ({**request(0, 5, 1), "timestamp": None}, "line 2: timestamp is not a finite number; got 'None'"),
        (
            {"timestamp": 0, "input_length": 5},
            "line 2: the field output_length is missing; got 'timestamp, inp",
        ),
        (request(0, 5), "hash_ids does not fit an input_length of 5; got 0; limit: 1, one for each 512"),
        (request(0, 513, 1), "number of hash_ids does not fit .* got 1; limit: 2"),
        (request(0, 5, -1), r"hash_ids are wrong; got '\[-1\]'; limit: a list of whole numbers from 0"),
        (request(0, 5, 1 << 60), "hash_ids are wrong"),
        ({**request(0, 5, 1), "hash_ids": 3}, "hash_ids are wrong; got '3'"),
        ({**request(0, 5, 1), "hash_ids": ["a"]}, "hash_ids are wrong"),
        (request(0, 5, 1, num_output=0), "line 2: output_length is zero"),
        (request(float("nan"), 5, 1), "timestamp is not a finite number; got 'nan'"),
        (request(-5, 5, 1), "before that of the request above; got -0.005"),
    ],
)
def test_bad_mooncake_lines_are_refused(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        trace(tmp_path, request(0, 5, 1), line)


@needs_traces
@pytest.mark.parametrize(
    ("name", "num_requests", "rate"),
    [
        pytest.param("mooncake_conversation", 12_031, 0.366, marks=pytest.mark.soak),
        ("mooncake_synthetic", 3_993, 0.640),
    ],
)
def test_public_mooncake_traces_have_their_hit_rate(name: str, num_requests: int, rate: float) -> None:
    """Of whole traces, in a radix tree that forgets nothing. Of each block of 512 tokens it is shown the
    first and the last, which is all that tells blocks apart."""
    tree, hits, blocks = RadixTree(2), 0, 0
    requests: list[SimRequest] = list(TraceFile(TRACES / f"{name}.jsonl"))
    assert len(requests) == num_requests
    for made in requests:
        assert isinstance(made.prompt, TokenRuns)
        runs = made.prompt.runs  # each begins with a block
        tokens = [t for run in runs for first in run[::512] for t in (first, min(first + 512, run.stop) - 1)]
        path = tree.match("", tokens, len(tokens))
        hits, blocks = hits + 2 * len(path), blocks + len(tokens)
        node = path[-1] if path else tree.root("")
        for i in range(2 * len(path), len(tokens), 2):
            node = tree.insert(node, tuple(tokens[i : i + 2]), 0)
    assert hits / blocks == pytest.approx(rate, abs=0.0005)


# -- vLLM and SGLang -----------------------------------------------------------------------------

RESULT = {
    "duration": 9.0,
    "completed": 3,
    "input_lens": [30, 10, 20],
    "output_lens": [3, 1, 2],
    "start_times": [103.0, 100.5, 102.0],
    "errors": ["", "", ""],
    "ttfts": [0.1, 0.1, 0.1],
}


def lengths(made: TraceFile) -> list[tuple[float, int, int]]:
    return [(r.arrival, len(r.prompt), len(r.output)) for r in made]


@pytest.mark.parametrize("indent", [None, 2])
def test_results_of_vllms_benchmark(tmp_path: Path, indent: int | None) -> None:
    made = trace(tmp_path, json.dumps(RESULT, indent=indent))
    assert lengths(made) == [(0.0, 10, 1), (1.5, 20, 2), (2.5, 30, 3)]


def test_requests_that_failed_in_the_benchmark_are_left_out(tmp_path: Path) -> None:
    made = trace(tmp_path, {**RESULT, "errors": ["", "Connection refused", ""], "output_lens": [3, 0, 2]})
    assert lengths(made) == [(0.0, 20, 2), (1.0, 30, 3)] and made.num_left_out == 1


def test_results_of_sglangs_benchmark_need_arrivals(tmp_path: Path) -> None:
    result = {name: column for name, column in RESULT.items() if name != "start_times"}
    with pytest.raises(TraceFileError, match="does not say when requests arrived"):
        trace(tmp_path, result)
    with pytest.raises(TraceFileError, match="does not say when requests arrived"):
        trace(tmp_path, result, arrivals="constant", end=5.0)
    made = trace(tmp_path, {"duration": 1, "completed": 3}, result, arrivals="constant", rate=2.0)
    assert lengths(made) == [(0.0, 30, 3), (0.5, 10, 1), (1.0, 20, 2)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ({"duration": 1, "completed": 3},),
            r"has no lengths of single requests; got 'dura.*--save-detailed",
        ),
        ((RESULT, RESULT), "line 2: .* more than one run of the benchmark; got 'lines 1, 2'; limit: 1. Keep"),
        (({**RESULT, "output_lens": [1]},), "output_lens is no list, or not as long as input_lens"),
        (({**RESULT, "input_lens": 3},), "input_lens is no list, or"),
        (({**RESULT, "output_lens": [3, -1, 2]},), r"line 1: output_lens\[1\] is negative; got -1"),
        (({**RESULT, "start_times": [1, None, 2]},), r"start_times\[1\] is not a finite number"),
    ],
)
def test_bad_results_are_refused(tmp_path: Path, lines: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        trace(tmp_path, *lines)


def test_recorded_requests_of_vllm(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        {"request_id": "a", "input_toks": 7, "output_toks": 3, "arrival_time": 1787267980.25},
        {"request_id": "b", "input_toks": 8, "output_toks": 4, "arrival_time": 1787267980.75},
    )
    assert lengths(made) == [(0.0, 7, 3), (0.5, 8, 4)]


@needs_traces
@pytest.mark.parametrize("name", ["rtx4090", "rtxpro6000"])
def test_public_recordings_are_those_of_the_lengths(name: str) -> None:
    recorded = lengths(TraceFile(TRACES / f"measured_vllm_llama31_8b_{name}.jsonl"))
    planned = lengths(TraceFile(TRACES / "sharegpt_lengths_300.csv"))
    assert sorted(r[1:] for r in recorded) == sorted(p[1:] for p in planned)
    assert recorded[-1][0] == pytest.approx(planned[-1][0], rel=0.02)
