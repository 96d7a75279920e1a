"""Our own driver over a small random model: what it answers to each kind of work."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from comparison import llama1b
from comparison.sides import DRIVER
from peers.client import Peer, PeerError

from leafage.core.step_times import PARTS

PROMPTS, LENGTHS = [[300, 301, 302, 303], list(range(310, 350)), list(range(310, 340))], [9, 4, 7]


@pytest.fixture(scope="module")
def peer(tmp_path_factory) -> Iterator[Peer]:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("driver") / "small.gguf"
    llama1b.write(path, layers=2, hidden=256, ffn=512, vocabulary=2000)
    words = ["--peers", "none", "--model", str(path), "--threads", "2", "--kv-cache-tokens", "512"]
    with Peer([sys.executable, str(DRIVER), *words]) as running:
        yield running


def test_ready_line_says_what_a_token_reads(peer: Peer) -> None:
    settings = peer.info["settings"]
    assert peer.info["peer"] == "leafage" and settings["threads"] == 2
    assert settings["linear_bytes"] > 2000 * 256 * 6 // 8, "the output head alone"
    assert settings["kv_bytes_per_token"] == 2 * 2 * 64 * 2, "K and V of two layers, one head of 64, bf16"


def test_batch_alone_and_sampled(peer: Peer) -> None:
    batch = peer.run("W3", PROMPTS, LENGTHS)
    assert [len(ids) for ids in batch["tokens"]] == batch["output_tokens"] == LENGTHS
    assert 0 < batch["native"] < batch["wall"] and batch["cpu"] > 0
    alone = peer.run("W3 alone", PROMPTS, LENGTHS)
    assert alone["tokens"] == batch["tokens"] and alone["cached_tokens"] == 0
    sampled = peer.run("W3 sampled", PROMPTS, LENGTHS)
    assert sampled["output_tokens"] == LENGTHS and sampled["tokens"] != batch["tokens"]


def test_the_cache_is_kept_where_that_is_asked(peer: Peer) -> None:
    peer.run("W4", PROMPTS, LENGTHS)
    assert peer.run("W4cached", PROMPTS, LENGTHS, reset_cache=False)["cached_tokens"] > 60
    assert peer.run("W4", PROMPTS[:1], LENGTHS[:1])["cached_tokens"] == 0


def test_figures(peer: Peer) -> None:
    prompt = [PROMPTS[1]]
    for name in ("gemm", "attention"):
        assert peer.run(name, prompt, [1])["figures"]["operations_per_second"] > 0
    figures = peer.run("outside 1", [[1]], [1])["figures"]
    assert set(figures["parts"]) == set(PARTS)
    assert 0 < figures["outside"] < 1 and 0 < figures["native"] < 1
    memory = peer.run("memory", PROMPTS, LENGTHS)["figures"]
    assert memory["beyond"] == memory["peak"] - memory["pool"] - memory["file"] > 0


def test_what_is_refused_is_an_error_and_the_driver_goes_on(peer: Peer) -> None:
    with pytest.raises(PeerError, match="vocabulary"):
        peer.run("W1", [[2000]], [1])
    assert peer.run("W1", [[1999]], [2])["decode"] > 0
