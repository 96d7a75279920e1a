"""Our own driver over a small random model: what it answers to each kind of work."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from comparison import llama1b
from comparison.sides import DRIVER
from peers.client import Peer, PeerError

from leafage import LLM, SamplingParams
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


def test_conversations_are_what_each_turn_is_alone(peer: Peer) -> None:
    prompts, lengths = [list(range(300 + 9 * i, 320 + 9 * i)) for i in range(6)], [5, 4, 6] * 2
    chat = peer.run("W5", prompts, lengths, turns=3)
    assert [len(ids) for ids in chat["tokens"]] == chat["output_tokens"] == lengths
    assert 0 < chat["first_token"] < chat["wall"] and 0 < chat["mean_first_token"] < chat["wall"]
    assert 0 < chat["p99_inter_token"] < chat["wall"] and chat["decode"] is None
    whole = sum(20 * turn + sum(lengths[: turn - 1]) for turn in (1, 2, 3)) * 2
    computed = chat["counted"]["prompt_tokens"]
    assert computed == whole - chat["cached_tokens"] and chat["cached_tokens"] > 100
    assert chat["counted"]["generation_tokens"] == sum(lengths)
    alone = peer.run("W5 alone", prompts, lengths, turns=3)
    assert alone["tokens"] == chat["tokens"] and alone["cached_tokens"] == 0
    again = peer.run("W5", prompts, lengths, turns=3, reset_cache=False)
    assert again["tokens"] == chat["tokens"] and again["cached_tokens"] > chat["cached_tokens"]


def test_a_turn_that_is_refused_is_an_error_and_the_driver_goes_on(peer: Peer) -> None:
    with pytest.raises(PeerError, match="RequestTooLargeError"):
        peer.run("W5", [[300] * 200] * 4, [50] * 4, turns=4)
    assert peer.run("W5", [[300], [301]], [2, 2], turns=2)["output_tokens"] == [2, 2]


def test_several_sequences_of_a_prompt_are_what_each_draws_alone(peer: Peer) -> None:
    several = peer.run("W7", PROMPTS, LENGTHS, n=3, temperature=1.0)
    assert several["output_tokens"] == [length for length in LENGTHS for _ in range(3)]
    computed = sum(map(len, PROMPTS)) - several["cached_tokens"]
    assert several["counted"]["prompt_tokens"] == computed, "each prompt once"
    alone = peer.run("W7 alone", PROMPTS, LENGTHS, n=3, temperature=1.0)
    assert alone["tokens"] == several["tokens"]
    assert several["tokens"][0] != several["tokens"][1]


def test_beams(peer: Peer) -> None:
    answer = peer.run("beam", PROMPTS[1:2], LENGTHS[1:2], beam_width=3)
    assert answer["output_tokens"] == LENGTHS[1:2]
    with LLM(peer.info["settings"]["model"], kv_cache_tokens=1024) as llm:
        params = SamplingParams(beam_width=3, max_tokens=LENGTHS[1], ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": PROMPTS[1]}, params, use_tqdm=False)
    assert answer["tokens"] == [output.outputs[0].token_ids]


def test_pool_and_token_budget_are_set(tmp_path_factory, peer: Peer) -> None:
    model = peer.info["settings"]["model"]
    words = ["--peers", "none", "--model", model, "--threads", "2"]
    with Peer(
        [sys.executable, str(DRIVER), *words, "--token-budget", "16", "--kv-cache-tokens", "96"]
    ) as small:
        settings = small.info["settings"]
        assert settings["max_num_batched_tokens"] == 16
        assert settings["kv_bytes"] == 96 * settings["kv_bytes_per_token"]
        pressed = small.run("W3", PROMPTS * 3, [30, 30, 30] * 3)
        assert pressed["counted"]["num_preemptions"] > 0
        assert pressed["counted"]["recomputed_tokens"] > 0
    assert peer.run("W3", PROMPTS * 3, [30, 30, 30] * 3)["tokens"] == pressed["tokens"]


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
