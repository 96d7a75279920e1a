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
        assert body["ignore_eos"] and body["cache_prompt"]
        how = (["top_k"], 0) if body["n_cmpl"] == 1 else (["temperature"], 1.0)
        assert (body["samplers"], body["temperature"]) == how
        timings = {"cache_n": len(body["prompt"]) // 2, "predicted_ms": 0.001}  # less than any exchange takes
        if body["prompt"] == [666]:
            self.answer({"error": "the context is full"}, 500)
        elif body.get("stream"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b": a comment" + b"\\n" * 2)
            for i in range(body["n_predict"]):
                if body["prompt"] == [667] and i == 1:
                    self.wfile.write(b"error: the context is full")
                    return
                if body["prompt"] != [668] or i == 0:
                    self.event({"tokens": [sum(body["prompt"]) + i], "tokens_predicted": i + 1})
            self.event({"tokens": [], "tokens_predicted": body["n_predict"], "timings": timings})
        else:
            answer = {"tokens_predicted": body["n_predict"], "timings": timings}
            self.answer(answer if body["n_cmpl"] == 1 else [answer] * body["n_cmpl"])

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\\n" * 2)

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


def test_conversations_are_streamed(driver: Peer, peers: Path) -> None:
    """The next prompt holds what was answered: of 1 + 2, 3 and 4; of those and 1, 12 and 13."""
    answer = driver.run("W5", [[1, 2], [1], [5], [6]], [2, 2, 1, 1], turns=2)
    assert (answer["output_tokens"], answer["cached_tokens"]) == ([2, 2, 1, 1], 1 + 2 + 0 + 1)
    assert 0 < answer["first_token"] <= answer["wall"]
    assert answer["mean_first_token"] > 0 and answer["p99_inter_token"] >= 0
    assert len(starts(peers)) == 1
    untold = driver.run("W5", [[668], [1]], [3, 2], turns=2)
    assert (untold["output_tokens"], untold["cached_tokens"]) == ([3, 2], (1 + 3 + 1) // 2)
    with pytest.raises(PeerError, match=r"1 of 2 failed, .*ended a stream: error: the context is full"):
        driver.run("W5", [[667], [5], [7], [8]], [2] * 4, turns=2)


def test_several_completions_of_a_prompt(driver: Peer) -> None:
    answer = driver.run("W7", [[1, 2], [5]], [7, 8], n=3, temperature=1.0)
    assert answer["output_tokens"] == [7, 7, 7, 8, 8, 8] and answer["cached_tokens"] is None
    with pytest.raises(PeerError, match="no beam search"):
        driver.run("beam", [[1]], [2], beam_width=4)


def test_another_pool(peers: Path) -> None:
    small = ["--kv-cache-tokens", "512"]
    for words, expected in (
        ([], "-np 16 -no-kvu -c 512"),
        (["--slots", "3", "--unified"], "-np 3 -kvu -c 512"),
    ):
        with Peer(command("llamacpp", peers, peers / "model.gguf", 2, *small, *words)) as peer:
            peer.run("W3", [[1]], [2])
            assert peer.info["settings"]["others"] == f"llama-server {expected}"
        assert expected in starts(peers)[-1]


def test_a_request_that_the_server_fails_is_an_error(driver: Peer) -> None:
    with pytest.raises(PeerError, match=r"1 of 2 failed, the first: .*answered 500.*the context is full"):
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
