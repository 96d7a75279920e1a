from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_model

PROMPT = "The capital of France is"


def test_the_answer_alone_is_on_stdout(leafage: Callable, smollm2_path: Path) -> None:
    done = leafage("run", PROMPT, "--model", str(smollm2_path), "--max-tokens", "8")
    assert done.returncode == 0
    assert done.stdout.startswith(" Paris") and done.stdout.endswith("\n")
    assert "KV pool" in done.stderr and "largest context" in done.stderr
    assert "Paris" not in done.stderr


def test_stdin_stream_and_plain_give_the_same(leafage: Callable, smollm2_path: Path) -> None:
    common = ["--model", str(smollm2_path), "--max-tokens", "12"]
    plain = leafage("run", PROMPT, *common).stdout
    assert leafage("run", "-", *common, input=PROMPT + "\n").stdout == plain
    assert leafage("run", PROMPT, "--stream", *common).stdout == plain
    assert leafage("run", *common, "--", PROMPT).stdout == plain


def test_json_output(leafage: Callable, smollm2_path: Path) -> None:
    words = ["run", PROMPT, "--model", str(smollm2_path), "--max-tokens", "4", "--json", "--logprobs", "2"]
    answer = json.loads(leafage(*words).stdout)
    assert answer["text"].startswith(" Paris") and len(answer["token_ids"]) == 4
    assert answer["finish_reason"] == "length" and len(answer["logprobs"]) == 4
    assert answer["num_cached_tokens"] == 0
    first = answer["prompt_token_ids"][0]
    miss = {"reason": "no_match", "position": 0, "token_id": first, "cached_token_id": None}
    assert answer["prefix_miss"] == miss


def test_flags_reach_the_engine(leafage: Callable, smollm2_path: Path) -> None:
    common = ["run", PROMPT, "--model", str(smollm2_path)]
    assert "Paris" not in leafage(*common, "--max-tokens", "8", "--bad-words", " Paris").stdout
    done = leafage(*common, "--stop", "Paris", "--kv-cache-tokens", "512", "--threads", "1")
    assert done.stdout == " \n"
    assert "KV pool 512 tokens" in done.stderr and "1 thread" in done.stderr
    seeded = [*common, "--temperature", "1", "--seed", "5", "--max-tokens", "10"]
    assert leafage(*seeded).stdout == leafage(*seeded).stdout


def test_too_long_a_prompt_is_refused_with_the_limit(leafage: Callable, smollm2_path: Path) -> None:
    done = leafage("run", "word " * 200, "--model", str(smollm2_path), "--kv-cache-tokens", "64")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: ") and "64" in done.stderr.splitlines()[-1]


def test_stdin_that_is_no_text_is_refused(leafage: Callable) -> None:
    done = leafage("run", "-", input=b"\xff\xfe")
    assert done.returncode == 2 and "not UTF-8" in done.stderr


def test_ctrl_c_ends_with_130(tmp_path: Path, smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "leafage", "run", PROMPT, "--model", str(smollm2_path), "--stream"]
    command += ["--ignore-eos", "--max-tokens", "4000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.read(1)  # it has begun
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 10
    assert errors.decode().splitlines()[-1] == "interrupted" and b"Traceback" not in errors


def test_ctrl_c_again_while_it_stops_changes_nothing(tmp_path: Path, smollm2_path: Path) -> None:
    """Stopping waits for the step that runs, here one of a long prompt. It died of the thread left behind."""
    (tmp_path / "prompt.txt").write_text("water " * 4000)
    command = [sys.executable, "-m", "leafage", "run", "--prompt=-", "--model", str(smollm2_path)]
    command += ["--max-num-batched-tokens", "4096"]
    with (tmp_path / "prompt.txt").open() as prompt:
        process = subprocess.Popen(command, stdin=prompt, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stderr is not None
    assert b"KV pool" in process.stderr.readline()
    time.sleep(0.4)  # the prompt takes seconds
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    assert errors.decode().splitlines()[-1] == "interrupted" and b"Traceback" not in errors


def test_reader_that_leaves_is_no_fault(tmp_path: Path, smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "leafage", "run", PROMPT, "--model", str(smollm2_path), "--stream"]
    command += ["--ignore-eos", "--max-tokens", "4000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=30) != 0
    assert b"Traceback" not in errors and b"fault in Leafage" not in errors


def test_a_loaded_model_is_out_of_the_collectors_way(smollm2_path: Path, tmp_path: Path) -> None:
    """On the command line, whose process is ours. A library leaves its user's collector alone."""
    code = (
        "import gc, sys; from leafage import LLM; from leafage.cli import terminal\n"
        "command_line = sys.argv[2] == 'cli'\n"
        "with terminal.open_llm(sys.argv[1], {'kv_cache_tokens': 256}) if command_line else "
        "LLM(sys.argv[1], kv_cache_tokens=256):\n"
        "    print(gc.get_freeze_count() > 10_000, gc.isenabled())"
    )
    for who, expected in (("cli", "True True\n"), ("library", "False True\n")):
        words = [sys.executable, "-c", code, str(smollm2_path), who]
        assert subprocess.run(words, capture_output=True, text=True, cwd=tmp_path).stdout == expected
