"""llama.cpp's driver against stand-ins for its programs: what it asks of them, how it reads their answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.client import Peer, PeerError, command

BENCH = """
import json, sys
words = sys.argv[1:]
assert words[words.index("-t") + 1] == "2" and words[words.index("-m") + 1].endswith("model.gguf")
for line in ("warmup generation run", "depth run 1/1", "generation run 1/1"):
    print("llama-bench: benchmark 1/1:", line, file=sys.stderr)
if "-d" in words:
    rate = {"128": 50.0}[words[words.index("-d") + 1]]
else:
    lengths = words[words.index("-p") + 1], words[words.index("-n") + 1]
    rate = {("0", "128"): 100.0, ("1024", "0"): 512.0}[lengths]
print(json.dumps([{"avg_ts": rate}]))
"""

SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

with open(os.path.join(os.path.dirname(__file__), "starts"), "a") as starts:
    starts.write(" ".join(sys.argv[1:]) + chr(10))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] and body["cache_prompt"] and body["temperature"] == 0
        if body["prompt"] == [666]:
            self.answer({"error": "the context is full"}, 500)
        else:
            timings = {"cache_n": len(body["prompt"]) // 2, "predicted_ms": 1.0}
            self.answer({"tokens_predicted": body["n_predict"], "timings": timings})

    def answer(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

QUANTIZE = """
import pathlib, sys
source, target, name = sys.argv[-3:]
assert "--allow-requantize" in sys.argv
pathlib.Path(target).write_text(f"{source} as {name}")
"""


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    """A folder as `setup` fills it, with stand-ins for the programs."""
    folder = tmp_path / "llamacpp"
    (folder / "build" / "bin").mkdir(parents=True)
    (folder / "installed.json").write_text('{"llama-cpp-python": "0.3.36"}')
    for name, source in (("llama-bench", BENCH), ("llama-server", SERVER), ("llama-quantize", QUANTIZE)):
        program = folder / "build" / "bin" / name
        program.write_text(f"#!{sys.executable}\n{source}")
        program.chmod(0o755)
    return tmp_path


@pytest.fixture
def driver(peers: Path) -> Iterator[Peer]:
    with Peer(command("llamacpp", peers, peers / "model.gguf", 2)) as peer:
        yield peer


def starts(peers: Path) -> list[str]:
    path = peers / "llamacpp" / "build" / "bin" / "starts"
    return path.read_text().splitlines() if path.exists() else []


def test_decode_is_first_to_last_token_at_both_depths(driver: Peer) -> None:
    answer = driver.run("W1", [list(range(128))], [128])
    assert answer["decode"] == pytest.approx(127 / 100)
    assert answer["decode_at_depth_128"] == pytest.approx(127 / 50)
    assert (answer["output_tokens"], answer["first_token"]) == ([128], None)
    assert answer["cpu"] >= 0


def test_prefill(driver: Peer, peers: Path) -> None:
    answer = driver.run("W2", [list(range(1024))], [1])
    assert answer["wall"] == answer["first_token"] == pytest.approx(2.0)
    assert starts(peers) == [], "no server for what llama-bench does"


def test_a_server_starts_for_each_empty_cache(driver: Peer, peers: Path) -> None:
    prompts, lengths = [[1, 2, 3, 4], [5, 6]], [7, 8]
    answer = driver.run("W4", prompts, lengths)
    assert (answer["output_tokens"], answer["cached_tokens"], answer["decode"]) == ([7, 8], 3, None)
    assert 0 <= answer["first_token"] <= answer["wall"]
    driver.run("W4cached", prompts, lengths, reset_cache=False)
    assert len(starts(peers)) == 1
    driver.run("W4", prompts, lengths)
    assert len(starts(peers)) == 2
    assert all("-np 16 -no-kvu -c 24576" in line for line in starts(peers))


def test_a_request_that_the_server_fails_is_an_error(driver: Peer) -> None:
    with pytest.raises(PeerError, match=r"answered 500.*the context is full"):
        driver.run("W3", [[1], [666]], [2, 2])
    assert driver.run("W3", [[1]], [2])["output_tokens"] == [2]


def test_a_cold_start_has_a_server_of_its_own(driver: Peer, peers: Path) -> None:
    answer = driver.run("cold", [[1, 2]], [1])
    assert answer["wall"] == answer["first_token"] > 0
    assert len(starts(peers)) == 1 and "-c 4096" in starts(peers)[0]


def test_another_format_is_made_once(peers: Path) -> None:
    words = command("llamacpp", peers, peers / "model.gguf", 2, "--format", "Q8_0")
    made = peers / "models" / "model.Q8_0.gguf"
    with Peer(words) as peer:
        assert peer.info["settings"]["model"] == str(made)
    assert made.read_text() == f"{peers / 'model.gguf'} as Q8_0"
    made.write_text("kept")
    with Peer(words):
        assert made.read_text() == "kept"
