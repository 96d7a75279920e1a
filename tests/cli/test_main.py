from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leafage import cli

COMMANDS = ("run", "chat", "bench", "sim", "pull", "ls", "show", "rm", "inspect")


def test_help_names_every_command(leafage: Callable) -> None:
    done = leafage("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout
    assert leafage().stdout == done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(leafage: Callable, command: str) -> None:
    done = leafage(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert f"Usage: leafage {command}" in done.stdout
    assert "None" not in done.stdout, "help is for people, not for Python"


def test_version(leafage: Callable) -> None:
    done = leafage("--version")
    assert done.returncode == 0 and done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rum"], 'Unknown command "rum". Did you mean "rm"?'),
        (["run"], "requires an argument"),
        (["run", "two", "words"], "Put the prompt in quotes."),
        (["run", "x", "--temprature", "1"], "Did you mean --temperature?"),
        (["run", "x", "--temperature", "warm"], "--temperature"),
        (["run", "x", "--temperature", "-1"], "temperature is out of range; got -1.0"),
        (["run", "x", "--top-p", "0"], "top_p is out of range"),
        (["run", "x", "--logit-bias", "5"], "logit-bias must be ID=BIAS"),
        (["run", "x", "--logprobs", "2"], "Add --json"),
        (["run", "x", "--stream", "--json"], "exclude each other"),
        (["run", "x", "--block-size", "17"], "block_size must be a power of two"),
        (["run", "x", "--kv-cache-bytes", "much"], "not a size"),
        (["bench", "W9"], "unknown workload"),
        (["bench", "--repetitions", "0"], "repetitions is out of range"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(leafage: Callable, words: list[str], message: str) -> None:
    done = leafage(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ") and message in first
    assert all(line.startswith("See `leafage") for line in rest)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "x", "--model", "nowhere"],
            "no model named nowhere; limit: known names: smollm2, gemma3-270m",
        ),
        (["run", "x", "--model", "./nowhere.gguf"], "no file or folder ./nowhere.gguf"),
        (["chat", "--model", "hf:x"], "not a Hugging Face name"),
        (["inspect", "gemma3-270m"], "leafage pull gemma3-270m"),
        (["rm", "smollm2"], "is not on this machine"),
        (["rm"], "no model named"),
        (["pull", "nothing"], "nothing to pull by the name nothing"),
        (["show", "nothing"], "no model named nothing"),
    ],
)
def test_errors_are_one_line_and_code_1(leafage: Callable, words: list[str], message: str) -> None:
    done = leafage(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ") and message in done.stderr


def test_corrupt_files_are_refused_by_name(leafage: Callable, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    for command in (["run", "x", "--model"], ["chat", "--model"], ["inspect"]):
        for name in ("cut.gguf", "text.gguf", "empty.gguf"):
            done = leafage(*command, name)
            assert done.returncode == 1
            assert done.stderr.startswith("error: ") and name in done.stderr
            assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(leafage: Callable) -> None:
    done = leafage("show", "nothing", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr and "ModelNotFoundError" in done.stderr
    done = leafage("show", "nothing", LEAFAGE_DEBUG="1")
    assert "Traceback" in done.stderr


def test_words_after_the_double_dash_are_a_prompt() -> None:
    assert cli._take_debug(["run", "--debug", "-", "--", "--debug", "-"]) == (
        ["run", "--prompt=-", "--", "--debug", "-"],
        True,
    )
    assert cli._take_debug(["run", "x"]) == (["run", "x"], False)


def test_unexpected_faults_are_said_to_be_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> int:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(cli, "_run", fail)
    monkeypatch.setattr(cli.warnings, "showwarning", cli.warnings.showwarning)
    monkeypatch.setattr(cli.signal, "signal", lambda *args: None)
    assert cli.main(["ls"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: ZeroDivisionError: a b",
        "This is a fault in Leafage; run again with --debug for the traceback.",
    ]


def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(words: list[str]) -> int:
        cli.warnings.showwarning("two\nlines", UserWarning, "file.py", 1)
        return 0

    monkeypatch.setattr(cli, "_run", warn)
    monkeypatch.setattr(cli.warnings, "showwarning", cli.warnings.showwarning)
    monkeypatch.setattr(cli.signal, "signal", lambda *args: None)
    assert cli.main(["ls"]) == 0
    assert capsys.readouterr().err == "warning: two lines\n"


def test_interrupt_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    monkeypatch.setattr(cli.warnings, "showwarning", cli.warnings.showwarning)
    monkeypatch.setattr(cli.signal, "signal", lambda *args: None)
    assert cli.main(["ls"]) == 130


def test_terminate_runs_the_finally_clauses(tmp_path: Path) -> None:
    code = (
        "import sys, time, leafage.cli as cli\n"
        "def wait(words):\n"
        "    try:\n        print('ready', flush=True); time.sleep(60)\n"
        "    finally:\n        print('cleaned', flush=True)\n"
        "cli._run = wait\nsys.exit(cli.main(['ls']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "cleaned\n"
    assert process.returncode == 143


def test_start_imports_nothing_heavy(tmp_path: Path) -> None:
    """What `leafage run` needs only later (or never) must not cost at the start."""
    code = (
        "import sys, leafage.cli.app\n"
        "leafage.cli.app.make_app(['run', 'x'])\n"
        "heavy = {'rich.console', 'numpy', 'tokenizers', 'jinja2', 'huggingface_hub', 'leafage.llm'}\n"
        "heavy |= {f'leafage.cli.{name}' for name in ('chat', 'bench', 'inspect', 'models')}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
