from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_model

SUMMARY = r"\[(stopped, )?\d+ tokens?, .*\d+ of \d+ prompt tokens cached.*\]"


class Terminal:
    """`leafage chat` in a pseudo-terminal, with the keys that a person presses."""

    def __init__(self, home: Path, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(LEAFAGE_HOME=str(home), TERM="dumb", NO_COLOR="1")
            os.chdir(home)
            os.execv(sys.executable, [sys.executable, "-m", "leafage", "chat", *words])
        self.screen = ""

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Read until the pattern shows; returns and forgets everything up to its end."""
        end = time.monotonic() + timeout
        while not (match := re.search(pattern, self.screen)):
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"no {pattern!r} in {self.screen!r}")
        seen, self.screen = self.screen[: match.end()], self.screen[match.end() :]
        return seen

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 1)[0]:
            return True
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C until the pattern shows: CPython loses a signal just before readline waits for a key."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.expect(pattern, timeout=3)
                return
        raise AssertionError(f"no {pattern!r} in {self.screen!r}")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def code(self, timeout: float = 30) -> int:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("still running")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def chat(tmp_path: Path, smollm2_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(tmp_path, "--model", str(smollm2_path), "--temperature", "0", *words))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_conversation_with_commands(chat: Callable[..., Terminal]) -> None:
    terminal = chat("--max-tokens", "20")
    terminal.expect("KV pool")
    terminal.expect(">>> ")
    terminal.type("Hello\n")
    first = terminal.expect(SUMMARY)
    terminal.expect(">>> ")
    terminal.type("Tell me more\n")
    second = terminal.expect(SUMMARY)
    cached = int(re.search(r"(\d+) of \d+ prompt", second)[1])  # type: ignore[index]
    assert cached >= 20, "the history is in the cache"
    terminal.expect(">>> ")
    terminal.type("/reset\n")
    terminal.expect("forgotten")
    terminal.type("Hello\n")
    again = terminal.expect(SUMMARY)
    assert _answer(first) == _answer(again), "after /reset the same question gets the same answer"
    terminal.type("/help\n")
    terminal.expect(r"/system TEXT")
    terminal.type("/nonsense\n")
    terminal.expect("no command /nonsense")
    terminal.type("/system You only speak French.\n")
    terminal.expect("new conversation with this system message")
    terminal.expect(">>> ")
    terminal.type("\x04")
    assert terminal.code() == 0


def _answer(screen: str) -> str:
    return screen.rsplit("Hello\r\n", 1)[1].rsplit("[", 1)[0]


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: Callable[..., Terminal]) -> None:
    terminal = chat("--ignore-eos", "--max-tokens", "4000")
    terminal.expect(">>> ")
    terminal.type("Tell me a long story\n")
    terminal.expect(r"story\r\n.{20}")
    terminal.type("\x03")
    assert "stopped" in terminal.expect(SUMMARY)
    terminal.expect(">>> ")
    terminal.type("half a line")
    terminal.expect("half a line")
    terminal.interrupt("Ctrl-D ends the program")
    terminal.expect(">>> ")
    terminal.type("Go on\n")
    terminal.expect(r"Go on\r\n.{20}")
    terminal.type("\x03")
    terminal.expect(SUMMARY)
    terminal.expect(">>> ")
    terminal.type("\x04")
    assert terminal.code() == 0


def test_conversation_from_a_pipe(leafage: Callable, smollm2_path: Path) -> None:
    words = ["chat", "--model", str(smollm2_path), "--temperature", "0", "--max-tokens", "8"]
    done = leafage(*words, input="Hello\n\nHello again\n")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 2 and ">>>" not in done.stdout
    assert len(re.findall(SUMMARY, done.stderr)) == 2


def test_too_long_a_turn_is_refused_and_the_chat_goes_on(leafage: Callable, smollm2_path: Path) -> None:
    words = ["chat", "--model", str(smollm2_path), "--kv-cache-tokens", "128", "--max-tokens", "8"]
    done = leafage(*words, input="word " * 200 + "\nHello\n")
    assert done.returncode == 0
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert len(re.findall(SUMMARY, done.stderr)) == 1


def test_base_model_is_refused_and_names_the_remedy(leafage: Callable, gemma3_path: Path) -> None:
    done = leafage("chat", "--model", str(gemma3_path), input="Hello\n")
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "chat template" in last and "--chat-template FILE" in last


def test_base_model_with_a_template_of_ones_own(leafage: Callable, gemma3_path: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    words = ["chat", "--model", str(gemma3_path), "--chat-template", str(template), "--max-tokens", "4"]
    done = leafage(*words, "--kv-cache-tokens", "1024", input="Hello\n")
    assert done.returncode == 0, done.stderr
    assert re.search(SUMMARY, done.stderr)
