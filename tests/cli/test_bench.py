from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.real_model
def test_bench_measures_and_writes_json(leafage: Callable, smollm2_path: Path, tmp_path: Path) -> None:
    words = [
        "bench",
        "W1",
        "W2",
        "--model",
        str(smollm2_path),
        "--repetitions",
        "1",
        "--kv-cache-tokens",
        "2048",
    ]
    done = leafage(*words, "--json", "result.json")
    assert done.returncode == 0, done.stderr
    assert "memory bandwidth" in done.stdout and "int8 peak" in done.stdout
    report = json.loads((tmp_path / "result.json").read_text())
    decode, prefill = report["results"]
    assert decode["name"] == "W1" and decode["num_output_tokens"] == 128
    assert prefill["num_prompt_tokens"] == 1024 and prefill["runs"][0]["cached_tokens"] == 0
    # Shares of the floors, which a busy machine lowers: what they say of the model does not depend on it.
    floors = report["floors"]
    assert decode["share"] * floors["bandwidth"] / decode["median"] == pytest.approx(96.5e6, rel=0.01)
    assert prefill["share"] * floors["int8_peak"] / prefill["median"] == pytest.approx(2 * 106.2e6, rel=0.01)
    assert 0 <= decode["outside_native"] < 1
    [run] = decode["runs"]
    assert run["steps"] >= 128 and run["mean_batch"] == pytest.approx(1)
    slots = [run["kv"][k] for k in ("stored", "reservation", "internal", "external", "cached", "free")]
    assert sum(slots) == pytest.approx(2048) and 128 < run["kv"]["stored"] < 256
    assert floors["bandwidth"] > 1e8


@pytest.mark.real_model
def test_json_to_stdout_is_json_alone(leafage: Callable, smollm2_path: Path) -> None:
    words = ["bench", "W1", "--model", str(smollm2_path), "-r", "1", "--kv-cache-tokens", "2048", "--json=-"]
    done = leafage(*words)
    assert json.loads(done.stdout)["results"][0]["unit"] == "tok/s"
