"""The talk with a peer's driver, here one without an engine, and what `setup` does around an installer."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.peers import expected
from benchmarks.peers.client import Peer, PeerError, command

FOLDER = Path(expected.__file__).parent

FAKE = """
import os, sys
sys.path.insert(0, {folder!r})
import protocol

class Fake:
    peer, version, settings = "fake", "1", {{"threads": 1}}

    def __init__(self):
        print("a library that prints")
        os.write(1, b"and one that writes to the descriptor\\n")
        if "--broken" in sys.argv:
            raise RuntimeError("no such model")

    def run(self, request):
        print("running", request.workload)
        if request.workload == "broken":
            raise ValueError("cannot")
        count = [n - (request.workload == "short") for n in request.output_lengths]
        return protocol.Answer(wall=2.0, output_tokens=count, cpu=1.0, extra={{"reset": request.reset_cache}})

    def close(self):
        open({mark!r}, "w").close()

answers = protocol.take_stdout()
protocol.serve(Fake, answers)
"""


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_driver.py"
    script.write_text(FAKE.format(folder=str(FOLDER), mark=str(tmp_path / "closed")))
    return [sys.executable, str(script)]


def test_a_driver_answers_through_the_noise_of_its_libraries(fake: list[str], tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, Peer(fake, log=log) as peer:
        assert (peer.info["peer"], peer.info["version"], peer.info["settings"]) == (
            "fake",
            "1",
            {"threads": 1},
        )
        assert peer.info["startup_s"] >= 0
        answer = peer.run("W3", [[1, 2], [3]], [4, 5])
        assert answer == {
            "wall": 2.0,
            "first_token": None,
            "decode": None,
            "output_tokens": [4, 5],
            "cpu": 1.0,
            "cached_tokens": None,
            "mean_first_token": None,
            "p99_inter_token": None,
            "reset": True,
        }
        assert peer.run("W3", [[1]], [1], reset_cache=False)["reset"] is False
    printed = (tmp_path / "log").read_text()
    assert "a library that prints" in printed and "writes to the descriptor" in printed
    assert (tmp_path / "closed").exists(), "the driver closes its engine when its stdin ends"


def test_a_failed_run_is_told_and_the_driver_goes_on(fake: list[str]) -> None:
    with Peer(fake) as peer:
        with pytest.raises(PeerError, match="ValueError: cannot"):
            peer.run("broken", [[1]], [1])
        with pytest.raises(PeerError, match=r"fake made \[6\] output tokens, asked for were \[7\]"):
            peer.run("short", [[1]], [7])
        with pytest.raises(PeerError, match=r"fake made \[4\] output tokens, asked for were \[4, 4\]"):
            peer.run("W7", [[1]], [4], n=2, temperature=1.0)
        assert peer.run("W1", [[1]], [1])["wall"] == 2.0


def test_a_driver_that_ends_is_an_error(fake: list[str]) -> None:
    with pytest.raises(PeerError, match="ended without an answer"):
        Peer([*fake, "--broken"])


def test_a_peer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="benchmarks/peers/setup vllm"):
        command("vllm", tmp_path, Path("model.gguf"), 2)


def test_every_peer_of_setup_has_a_driver(setup: ModuleType, tmp_path: Path) -> None:
    for name in setup.INSTALLERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "installed.json").touch()
        words = command(name, tmp_path, Path("model.gguf"), 2, "--format", "Q8_0")
        assert Path(words[1]).is_file()
        assert words[-2:] == ["--format", "Q8_0"]


@pytest.fixture
def setup() -> ModuleType:
    """The script, which has no suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader("peers_setup", str(FOLDER / "setup"))
    spec = importlib.util.spec_from_loader("peers_setup", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def test_setup_goes_on_after_a_failure_and_leaves_alone_what_is_there(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def good(folder: Path, log: object) -> None:
        assert list(folder.iterdir()) == [], "what a failed try left is removed"
        (folder / "part").touch()
        done.append("good")

    def bad(folder: Path, log: object) -> None:
        (folder / "part").touch()
        setup.Log(tmp_path / "bad.log").run(sys.executable, "-c", "print('no compiler'); raise SystemExit(3)")

    installers = {"bad": ({"bad": "1"}, bad), "good": ({"good": "1"}, good)}
    monkeypatch.setattr(setup, "INSTALLERS", installers)
    monkeypatch.setattr(sys, "argv", ["setup", "--into", str(tmp_path)])
    assert setup.main() == 1
    assert done == ["good"]
    error = capsys.readouterr().err
    assert "bad: FAILED" in error and "ended with 3" in error and "no compiler" in error

    installers["bad"] = ({"bad": "1"}, good)
    assert setup.main() == 0
    assert done == ["good", "good"], "only the one that had failed"

    installers["good"] = ({"good": "2"}, good)
    assert setup.main() == 0
    assert done == ["good", "good", "good"], "another version is installed anew"


CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
"""


def test_expected_figures_are_those_of_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected.os, "sched_getaffinity", lambda pid: {0, 1})
    machine = expected.cpu(CPUINFO)
    assert machine == {"vendor_id": "AuthenticAMD", "family": 25, "model": 17, "cores": 2}
    assert expected.figures(machine)["llamacpp"]["Q8_0"]["W3"] == 50
    assert expected.figures(machine | {"model": 18}) == {}


def test_share_of_the_expected_speed() -> None:
    assert expected.share("W1", 60, 120) == 0.5
    assert expected.share("W3", 60, 30) == 0.5
