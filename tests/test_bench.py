from __future__ import annotations

import pytest

from leafage import bench
from leafage.errors import InvalidParameterError


def test_workloads_are_those_of_the_definition() -> None:
    assert [
        (w.num_prompt_tokens, w.num_output_tokens) for w in (f(1, 49_152) for f in (bench.w1, bench.w2))
    ] == [
        (128, 128),
        (1024, 1),
    ]
    batch = bench.w3(1, 49_152)
    assert len(batch.prompts) == 64
    assert (batch.num_prompt_tokens, batch.num_output_tokens) == (9_326, 9_352)
    shots = bench.w4(1, 49_152)
    assert [len(p) for p in shots.prompts] == [640] * 64 and shots.output_lengths == [16] * 64
    assert len({tuple(p[:100]) for p in shots.prompts}) == 1
    assert len({tuple(p[:600]) for p in shots.prompts}) == 8
    assert len({tuple(p) for p in shots.prompts}) == 64
    assert shots.prompts != sorted(shots.prompts), "shuffled"

    chat = bench.w5(1, 49_152)
    assert (len(chat.prompts), chat.turns) == (80, 5) and {len(p) for p in chat.prompts} == {48}
    assert (chat.num_prompt_tokens, chat.num_output_tokens) == (16 * (5 * 48 + 10 * (48 + 32)), 16 * 5 * 32)
    drawn = bench.w7(1, 49_152)
    assert (drawn.n, drawn.temperature) == (4, 1.0) and len({tuple(p) for p in drawn.prompts}) == 8
    assert (drawn.num_prompt_tokens, drawn.num_output_tokens) == (8 * 512, 8 * 4 * 64)
    beams = bench.beam(1, 49_152)
    assert (beams.num_prompt_tokens, beams.num_output_tokens, beams.beam_width) == (128, 64, 4)


def test_repetitions_are_fresh_and_ids_are_in_the_vocabulary() -> None:
    assert bench.w2(1, 49_152).prompts != bench.w2(2, 49_152).prompts
    assert bench.w2(1, 49_152).prompts == bench.w2(1, 49_152).prompts
    assert max(max(p) for p in bench.w3(3, 500).prompts) < 500


def test_choose() -> None:
    workloads, overhead = bench.choose(())
    assert [w.name for w in workloads] == ["W1", "W2", "W3", "W4"] and overhead
    workloads, overhead = bench.choose(("w2",))
    assert [w.name for w in workloads] == ["W2"] and not overhead
    assert bench.choose(("overhead",)) == ([], True)
    with pytest.raises(InvalidParameterError, match="W1, W2, W3, W4, overhead"):
        bench.choose(("W5",))


def test_what_the_slots_that_were_held_are() -> None:
    kv = {"stored": 60.0, "reservation": 30.0, "internal": 10.0, "free": 900.0, "duplicates": 20.0}
    run = bench.Run(1.0, None, 0.1, 0.9, 10, 0, 3.0, kv)
    result = bench.Result("W3", "batch", "s", [1.0], [run], 128, 128)
    assert result.kv_shares == {"stored": 0.6, "reservation": 0.3, "internal": 0.1, "duplicates": 0.2}


def test_report_as_plain_numbers() -> None:
    runs = [bench.Run(wall, wall / 2, 0.1, wall * 0.9, 10, 0) for wall in (1.0, 2.0, 4.0)]
    result = bench.Result("W1", "decode", "tok/s", [1.0, 3.0, 2.0], runs, 128, 128)
    report = bench.Report("m", 2, "plain", 0.0, results=[result])
    plain = report.as_dict()["results"][0]
    assert (plain["median"], plain["min"], plain["max"]) == (2.0, 1.0, 3.0)
    assert plain["outside_native"] == pytest.approx(0.1)
    assert plain["outside_native_seconds_per_step"] == pytest.approx(0.02)
