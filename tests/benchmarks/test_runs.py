"""Runner and Sides over a driver that answers at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from comparison import runs
from comparison.runs import Runner, Step
from comparison.sides import Files, Side, Sides
from peers.client import Peer, PeerError

from leafage import bench

DRIVER = Path(__file__).with_name("fake_driver.py")
OURS, THEIRS = Side("leafage", "Q4_1"), Side("peer", "Q4_1")
WORK = bench.Work([[1, 2], [3]], [2, 3])
FLOORS = bench.Floors(40e9, 900e9, "test", 2)


class FakeSides(Sides):
    """Sides whose drivers are fakes; a behaviour by engine."""

    def __init__(self, **behaviours: str) -> None:
        super().__init__(Files(Path("a.gguf"), None, None), Path("none"), 2)
        self._behaviours = behaviours

    def _command(self, side: Side) -> list[str]:
        if side.engine not in self._behaviours:
            return super()._command(side)
        return [sys.executable, str(DRIVER), "--behaviour", self._behaviours[side.engine]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Measurements of the machine, replaced and counted; idle sides are not waited for."""
    calls: list[bool] = []

    def floors(threads: int) -> bench.Floors:
        calls.append(True)
        return FLOORS

    monkeypatch.setattr(bench, "measure_floors", floors)
    monkeypatch.setattr(runs.machine, "idle_cpus", lambda pid, seconds: 0.0)
    return calls


@pytest.fixture
def make(measured: list[bool]) -> Iterator[object]:
    made: list[FakeSides] = []

    def new(**behaviours: str) -> tuple[FakeSides, Runner, list[str]]:
        sides, told = FakeSides(**behaviours), []
        made.append(sides)
        return sides, Runner(sides, 2, tell=told.append), told

    yield new
    for sides in made:
        sides.close()


def pair(repetition: int) -> list[list[Step]]:
    return [[Step(OURS, "W3", WORK)], [Step(THEIRS, "W3", WORK)]]


def test_a_block_is_interleaved_between_floors(make, measured) -> None:
    _, runner, told = make(leafage="well", peer="well")
    runner.block("W3", 3, pair)
    assert len(measured) == 4 == len(runner.record.floors["W3"])
    order = [line.split(",")[0].strip() for line in told if line.startswith("  ")]
    assert order == ["Leafage Q4_1", "peer Q4_1", "peer Q4_1", "Leafage Q4_1", "Leafage Q4_1", "peer Q4_1"]
    for side in (OURS, THEIRS):
        samples = runner.record.samples[side, "W3"]
        assert [s.answer["wall"] for s in samples] == [2.0] * 3
        assert samples[0].answer["num_output_tokens"] == 5 and samples[0].answer["num_prompt_tokens"] == 3
        assert "tokens" not in samples[0].answer and samples[0].floors == []


def test_floors_right_around_a_step(make, measured) -> None:
    _, runner, _ = make(leafage="well")
    runner.run(Step(OURS, "W1", WORK, floors=True))
    assert runner.record.samples[OURS, "W1"][0].floors == [FLOORS] * 2 and len(measured) == 2


def test_short_work_that_the_host_disturbed_is_done_again(make, monkeypatch) -> None:
    """The least disturbed try counts; what finds its cache changed is not repeated."""
    _, runner, told = make(leafage="well")
    stolen = iter([0.5, 0.2, 0.01, 0.4, 0.3, 0.2, 0.1, 0.6])
    monkeypatch.setattr(runs.machine.Meter, "others", lambda meter: (0.0, next(stolen)))
    runner.run(Step(OURS, "W1", WORK))
    runner.run(Step(OURS, "W1", WORK))
    runner.run(Step(OURS, "W4cached", WORK, reset_cache=False))
    samples = runner.record.samples[OURS, "W1"] + runner.record.samples[OURS, "W4cached"]
    assert [(s.stolen, s.tries) for s in samples] == [(0.01, 3), (0.1, 4), (0.6, 1)]
    assert told[0].endswith(", 3 tries") and told[1].endswith(", the host 0.10, 4 tries")


@pytest.mark.parametrize(("behaviour", "same"), [("well", True), ("differs in a batch", False)])
def test_tokens_are_compared_with_each_request_alone(make, behaviour: str, same: bool) -> None:
    _, runner, _ = make(leafage=behaviour)
    runner.block("W3", 1, lambda _: [[Step(OURS, "W3", WORK)]])
    runner.alone(OURS, "W3")
    assert runner.record.checks == {"W3 = each request alone": same}


def test_what_prepares_a_step_is_no_sample_and_cached_tokens_are_compared(make) -> None:
    _, runner, _ = make(leafage="well")
    staging = bench.Work([[5], [6]], [1, 1])
    other = bench.Work([[1, 2], [4]], [2, 3])
    for work, same in ((WORK, True), (other, False)):
        steps = [
            Step(OURS, "W4", WORK),
            Step(OURS, "W4", staging, record=False),
            Step(OURS, "W4cached", work, reset_cache=False, check="W4cached = from a cold cache"),
        ]
        runner.block("W4", 1, lambda _, steps=steps: [steps])
        assert runner.record.checks == {"W4cached = from a cold cache": same}
    assert len(runner.record.samples[OURS, "W4"]) == 2


def test_a_check_is_against_the_step_of_ours_before_it_also_of_another_side(make) -> None:
    _, runner, _ = make(leafage="well", peer="well")
    pressed, other = Side("leafage", "Q4_1", ("--small",)), bench.Work([[1, 2], [4]], [2, 3])
    steps = [Step(OURS, "W3", WORK), Step(pressed, "W3", WORK, check="pressed = not")]
    runner.block("W3", 1, lambda _: [steps])
    assert runner.record.checks == {"pressed = not": True}
    runner.block("W3", 1, lambda _: [[*steps[:1], Step(pressed, "W3", other, check="pressed = not")]])
    assert runner.record.checks == {"pressed = not": False}
    assert len(runner.record.samples[pressed, "W3"]) == 2


def test_several_sequences_of_a_request_are_counted(make) -> None:
    _, runner, _ = make(leafage="well")
    work = bench.Work(WORK.prompts, WORK.output_lengths, n=3, temperature=1.0)
    answer = runner.run(Step(OURS, "W7", work))
    assert answer["output_tokens"] == [2, 2, 2, 3, 3, 3]
    assert runner.record.samples[OURS, "W7"][0].answer["num_output_tokens"] == 15


def test_options_of_a_side_are_words_for_its_driver(tmp_path: Path) -> None:
    (tmp_path / "llamacpp").mkdir()
    (tmp_path / "llamacpp" / "installed.json").touch()
    sides = Sides(Files(Path("a.gguf"), None, None), tmp_path, 2)
    ours = Side("leafage", "Q4_1", ("--token-budget", "64"))
    assert str(ours) == "Leafage Q4_1 --token-budget 64"
    assert sides._command(ours)[-2:] == ["--token-budget", "64"]
    theirs = sides._command(Side("llamacpp", "Q8_0", ("--unified",)))
    assert theirs[-3:] == ["--unified", "--format", "Q8_0"]


def test_one_that_fails_is_reported_and_the_others_go_on(make) -> None:
    _, runner, _ = make(leafage="well", peer="fails")
    runner.block("W3", 2, pair)
    assert "out of memory" in runner.record.errors[THEIRS, "W3"]
    assert (THEIRS, "W3") not in runner.record.samples
    assert len(runner.record.samples[OURS, "W3"]) == 2


def test_a_driver_that_makes_too_few_tokens_has_failed(make) -> None:
    _, runner, _ = make(leafage="short")
    assert runner.run(Step(OURS, "W3", WORK)) is None
    assert "asked for were [2, 3]" in runner.record.errors[OURS, "W3"]


def test_one_that_does_not_load_says_why_and_is_asked_once(make) -> None:
    sides, runner, _ = make(leafage="well", peer="does not load")
    runner.block("W3", 2, pair)
    assert "no such library" in runner.record.errors[THEIRS, "W3"]
    with pytest.raises(PeerError, match="no such library"):
        sides.get(THEIRS)


def test_a_peer_that_is_not_installed(make) -> None:
    _, runner, _ = make(leafage="well")
    runner.run(Step(Side("openvino", "Q4_1"), "W3", WORK))
    assert "run benchmarks/peers/setup openvino" in runner.record.errors[Side("openvino", "Q4_1"), "W3"]


def test_closed_sides_have_ended(make) -> None:
    sides, _, _ = make(leafage="well")
    peer: Peer = sides.get(OURS)
    assert sides.settings[OURS]["version"] == "1" and sides.model(OURS) == Path("a.gguf")
    sides.close()
    assert peer._process.poll() == 0 and sides.running() == {}
