"""`leafage sim reproduce`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from leafage.cli.sim_reproduce import make_engine
from leafage.core.sampling_params import SamplingParams


def test_a_demo_by_its_requirement_with_its_tables(leafage: Callable, tmp_path: Path) -> None:
    done = leafage("sim", "reproduce", "--only", "E4", "--markdown", "page.md", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "passed   exercise-4" in done.stdout
    assert "842.3 (wanted 842.3)" in done.stdout
    assert "1 demo: 1 passed; 8 of 8 checks passed" in done.stdout
    assert "842.3" in (tmp_path / "page.md").read_text()
    assert "842.3" in (tmp_path / "page.html").read_text()


def test_json_on_stdout_is_json_alone(leafage: Callable) -> None:
    done = leafage("sim", "reproduce", "--only", "exercise-4", "--json=-")
    assert json.loads(done.stdout)["verdicts"]["passed"] == 1


def test_the_list_names_what_is_pending(leafage: Callable) -> None:
    done = leafage("sim", "reproduce", "--list")
    assert done.returncode == 0
    assert "exercise-4" in done.stdout
    assert "(pending)" in next(line for line in done.stdout.splitlines() if line.startswith("code06-1"))


def test_an_unknown_demo_is_wrong_usage(leafage: Callable) -> None:
    done = leafage("sim", "reproduce", "--only", "R99")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no demo has this id; got 'R99'" in done.stderr


def test_the_tiny_model_is_made_and_computes() -> None:
    built = make_engine("tiny", {"kv_cache_tokens": 256, "threads": 1})
    built.engine.add_request("0", built.tokenizer.encode("abc"), SamplingParams(max_tokens=4, temperature=0))
    tokens: list[int] = []
    while built.engine.has_unfinished:
        tokens += [token.token_id for delta in built.engine.step() for token in delta.tokens]
    assert len(tokens) == 4
