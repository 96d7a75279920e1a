from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine.request_log import RequestLog, RequestLogWarning
from leafage.errors import InvalidParameterError

MakeRig = Callable[..., Any]
MakeLog = Callable[..., RequestLog]
KEY = b"k" * 32


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log() -> Iterator[MakeLog]:
    """Logs a rig."""
    opened: list[RequestLog] = []

    def make(rig: Any, path: Path, **settings: Any) -> RequestLog:
        settings = {"block_size": 4, "now": lambda: 1000.0, "secret": KEY, **settings}
        opened.append(RequestLog(path, rig.metrics, **settings))
        return opened[-1]

    yield make
    for written in opened:
        written.close()


def serve(rig: Any, *prompts: list[int], **settings: Any) -> None:
    """One after another, until the log has them."""
    params = settings.pop("params", SamplingParams(max_tokens=20))
    for prompt in prompts:
        rig.engine.add_request(f"r{rig.metrics.clock.now()}", prompt, params, **settings)
        rig.run()
    flush(rig)


def flush(rig: Any) -> None:
    listener = getattr(rig.metrics.on_finished, "__self__", None)
    if isinstance(listener, RequestLog):
        listener.flush()


def test_a_line_tells_what_happened(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    written = log(rig, tmp_path / "log")
    serve(rig, list(range(3, 14)), list(range(3, 14)), priority=2)
    written.close()
    serve(rig, [5, 6, 7])
    header, first, second = lines(tmp_path / "log")
    assert header == {"leafage_request_log": 1, "started": 1000.0, "block_size": 4, "tenants": "hashed"}
    assert {
        key: second[key] for key in ("prompt_tokens", "cached_tokens", "n", "beam_width", "priority")
    } == {
        "prompt_tokens": 11,
        "cached_tokens": 10,
        "n": 1,
        "beam_width": None,
        "priority": 2,
    }
    # The clock moves one second at each look.
    assert (first["arrival"], first["ttft"], first["finished"]) == (2.0, 2.0, 14.0)
    assert second["arrival"] > first["finished"] and second["oldest"] <= second["finished"]
    (answer,) = second["answers"]
    assert (answer["tokens"], answer["finish"]) == (6, "stop")
    assert len(second["prompt_blocks"]) == 2 * 16 and len(answer["blocks"]) == 2 * 16  # 11 and 17 tokens
    assert (second["prompt_blocks"], answer) == (first["prompt_blocks"], first["answers"][0])


def test_equal_hashes_are_equal_prefixes(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    log(rig, tmp_path / "log")
    one = [10, 11, 12, 13, 20, 21, 22, 23]
    serve(rig, one, [10, 11, 12, 13, 20, 21, 22, 24], [9, 11, 12, 13, 20, 21, 22, 23])
    serve(rig, one, cache_salt="other")
    serve(rig, [*one, *rig.tokenizer.encode("hello"), 0, 99])
    blocks = [
        [text[i : i + 16] for i in range(0, len(text), 16)]
        for text in (
            line["prompt_blocks"] + line["answers"][0]["blocks"] for line in lines(tmp_path / "log")[1:]
        )
    ]
    assert blocks[0][0] == blocks[1][0] and blocks[0][1] != blocks[1][1], "the second block differs"
    assert blocks[2][1] not in blocks[0], "a block after another prefix is another block"
    assert not set(blocks[3]) & set(blocks[0]), "salts share nothing"
    assert blocks[4][:3] == blocks[0][:3], "a prompt that goes on from an answer"


def test_no_text_and_no_way_to_guess_it(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    def hashes(name: str, **settings: Any) -> str:
        rig = make_rig("hello")
        log(rig, tmp_path / name, **settings)
        serve(rig, [100, 101, 102, 103], tenant="alice")
        text = (tmp_path / name).read_text()
        line = lines(tmp_path / name)[1]
        assert "alice" not in text and "hello" not in text
        assert not {100, 101, 102, 103} & {value for value in line.values() if isinstance(value, int)}
        return str(line["prompt_blocks"] + line["tenant"])

    assert hashes("a") == hashes("b") != hashes("c", secret=b"q" * 32)
    assert hashes("d", secret=None) != hashes("e", secret=None), "a key is drawn at each start"


def test_tenants_as_they_are(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    log(rig, tmp_path / "log", plain_tenants=True)
    serve(rig, [5], tenant="alice")
    header, line = lines(tmp_path / "log")
    assert (header["tenants"], line["tenant"]) == ("plain", "alice")


def test_several_answers_and_beams(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    log(rig, tmp_path / "log")
    serve(rig, [5] * 9, params=SamplingParams(n=2, best_of=3, max_tokens=3))
    serve(rig, [6] * 9, params=SamplingParams(n=2, beam_width=2, max_tokens=3))
    drawn, searched = lines(tmp_path / "log")[1:]
    assert (drawn["n"], drawn["beam_width"], [a["tokens"] for a in drawn["answers"]]) == (3, None, [3, 3, 3])
    assert (searched["n"], searched["beam_width"]) == (2, 2)
    assert [(a["tokens"], a["finish"], len(a["blocks"])) for a in searched["answers"]] == [
        (3, "length", 16)
    ] * 2


def test_aborted_requests_are_logged_as_far_as_they_got(
    make_rig: MakeRig, log: MakeLog, tmp_path: Path
) -> None:
    rig = make_rig("hello")
    log(rig, tmp_path / "log")
    rig.engine.add_request("waits", [5] * 9, SamplingParams())
    rig.engine.abort("waits")
    rig.engine.add_request("runs", [5] * 9, SamplingParams())
    rig.engine.step()
    rig.engine.step()
    rig.engine.abort("runs")
    flush(rig)
    waited, ran = lines(tmp_path / "log")[1:]
    assert sum(a["tokens"] for a in waited["answers"]) == 0 and waited["ttft"] is None
    assert [(a["tokens"], a["finish"]) for a in ran["answers"]] == [(2, "abort")]


def test_no_later_line_arrived_before_the_oldest(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    """Requests of different lengths, two at a time: they end in another order than they came."""
    rig = make_rig("hello", max_num_seqs=2)
    log(rig, tmp_path / "log")
    for i in range(12):
        rig.engine.add_request(str(i), [5, 6, 7], SamplingParams(max_tokens=1 + 5 * i % 7, ignore_eos=True))
        rig.engine.step()
    rig.run()
    flush(rig)
    written = lines(tmp_path / "log")[1:]
    arrivals = [line["arrival"] for line in written]
    assert len(arrivals) == 12 and arrivals != sorted(arrivals)
    for i, line in enumerate(written):
        assert all(line["oldest"] <= later for later in arrivals[i + 1 :])
    assert sum(line["oldest"] > written[0]["arrival"] for line in written) > 6, "it moves on"


def test_another_observer_still_hears_of_every_request(
    make_rig: MakeRig, log: MakeLog, tmp_path: Path
) -> None:
    rig = make_rig("hello")
    heard: list[str] = []
    rig.metrics.on_finished = lambda request, metrics: heard.append(request.request_id)
    written = log(rig, tmp_path / "log")
    serve(rig, [5])
    written.close()
    serve(rig, [6])
    assert len(heard) == 2 and len(lines(tmp_path / "log")) == 2


def test_logs_may_be_closed_in_any_order(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    first, second = log(rig, tmp_path / "first"), log(rig, tmp_path / "second")
    first.close()
    serve(rig, [5])
    second.close()
    serve(rig, [6])
    assert len(lines(tmp_path / "first")) == 1 and len(lines(tmp_path / "second")) == 2
    assert first.num_lost == 0


def test_a_log_is_added_to(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    for _ in range(2):
        rig = make_rig("hello")
        written = log(rig, tmp_path / "log")
        serve(rig, [5])
        written.close()
    assert ["leafage_request_log" in line for line in lines(tmp_path / "log")] == [True, False] * 2


def test_a_log_that_cannot_begin_watches_nothing(make_rig: MakeRig, log: MakeLog) -> None:
    rig = make_rig("hello")
    with pytest.raises(OSError):
        log(rig, Path("/dev/full"))
    assert rig.metrics.on_finished is None


@pytest.mark.filterwarnings("error::leafage.engine.request_log.RequestLogWarning")
def test_lines_that_cannot_be_written_are_counted_and_come_again_when_there_is_room(
    make_rig: MakeRig, log: MakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes ten bytes of a line and is full then. What is in the file stays readable."""
    rig = make_rig("hello")
    written = log(rig, tmp_path / "log")
    room, write, warned = [1 << 20], os.write, []
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: warned.append(text))

    def full(file: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", full)
    serve(rig, [5])
    room[0] = 10
    serve(rig, [5], [6])
    room[0] = 1 << 20
    serve(rig, [7])
    assert [line["number"] for line in lines(tmp_path / "log")[1:]] == [0, 3]
    assert written.num_lost == 2 and rig.engine.num_observer_errors == rig.metrics.num_errors == 0
    assert warned == ["the request log cannot be written: [Errno 28] No space left on device"]


def test_a_device_without_room_harms_nobody(make_rig: MakeRig, log: MakeLog, tmp_path: Path) -> None:
    rig = make_rig("hello")
    written = log(rig, tmp_path / "log")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, written._file)
    os.close(full)
    with pytest.warns(RequestLogWarning, match="No space left on device"):
        serve(rig, [5], [6])
    assert written.num_lost == 2 and rig.metrics.num_errors == 0


def test_a_disk_that_hangs_holds_nobody_up(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads is full after some lines."""
    monkeypatch.setattr("leafage.engine.request_log.MAX_UNWRITTEN", 20)
    monkeypatch.setattr("leafage.engine.request_log.CLOSE_TIMEOUT", 0.1)
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    rig = make_rig("hello", max_model_len=128)
    written = RequestLog(tmp_path / "log", rig.metrics, block_size=1)
    params = SamplingParams(max_tokens=2)
    with pytest.warns(RequestLogWarning, match="the disk is too slow"):
        for i in range(120):
            rig.engine.add_request(str(i), [i % 250] * 100, params)
            rig.run()
    written.close()
    assert 20 < written.num_lost < 120 and rig.engine.scheduler.counters.finished["length"] == 120
    os.close(reader)  # and the writer ends


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size is out of range; got 0; limit: 1 to 256"),
        ({"block_size": 512}, "block_size is out of range"),
        ({"secret": b"short"}, "secret has the wrong length; got 5; limit: 16 to 64 bytes"),
    ],
)
def test_settings_out_of_range_are_refused(
    make_rig: MakeRig, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        RequestLog(tmp_path / "log", make_rig("hello").metrics, **settings)
    assert not (tmp_path / "log").exists()
