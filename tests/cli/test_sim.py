from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leafage.cli.sim import COMMANDS

SMALL = ["--model", "smollm2-135m", "--hardware", "l4", "--requests", "20", "--rate", "20"]
FULL = ["--workload", "alpaca", "--kv-cache-tokens", "1024", "--max-model-len", "512", "--processes", "1"]
"""Of the KV cache."""


def test_help_names_every_command(leafage: Callable) -> None:
    done = leafage("sim", "--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"│ {command} " in done.stdout


@pytest.mark.parametrize("command", ["run", "goodput", "sweep", "compare", "plan"])
def test_help_of_each_command(leafage: Callable, command: str) -> None:
    done = leafage("sim", command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    for flag in ("--hardware", "--workload", "--slo", "--report", "--block-size", "--kv "):
        assert flag in done.stdout
    assert "--threads" not in done.stdout and "None" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message", "help"),
    [
        (["rum"], 'Did you mean "run"?', "leafage sim"),
        (["run", "--sead", "1"], "--seed", "leafage sim run"),
    ],
)
def test_wrong_usage_points_to_the_help(leafage: Callable, words: list[str], message: str, help: str) -> None:
    done = leafage("sim", *words)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.endswith(f"See `{help} --help`.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--threads", "2"], "--threads has no effect on a simulation"),
        (["run", "--kv-cache-dtype=int8"], "Set model.kv_bytes_each instead"),
        (["run", "--hardware", "a100"], "did you mean a100-40gb or a100-80gb?"),
        (["run", "--model", "lama-3-8b"], "did you mean llama-3-8b"),
        (["run", "--workload", "sharegtp"], "unknown workload"),
        (["run", "--model", "llama-3-70b"], "does not fit on 1 x a100-40gb"),
        (["run", "--slo", "tttf=2"], "unknown part of a service level"),
        (["run", "--slo", "ttft=soon"], "not a time"),
        (["run", "--set", "cv"], "NAME=VALUE"),
        (["run", "--set", "hardware.bandwith=1"], "Did you mean hardware.bandwidth"),
        (["run", "--json", "nowhere/run.json"], "no such folder"),
        (["plan", "--report", "nowhere/plan.html"], "no such folder"),
        (["sweep"], "a sweep varies one setting or two"),
        (["sweep", "blocksize=1,2"], "Did you mean block_size"),
        (["sweep", "block_size=1,x"], "block_size must be of type int"),
        (["sweep", "rate=3:1:1"], "FIRST:LAST:STEP"),
        (["sweep", "rate=1,2", "--metric", "throughputs"], "Did you mean throughput"),
        (["compare", "kv=paged"], "needs two variants"),
        (["compare", "kv=paged", "reserved-max"], "NAME=VALUE"),
        (["goodput", "--share", "2"], "share is out of range"),
        (["goodput", "--seeds", "0"], "seeds is out of range"),
        (["goodput", "--tolerance", "0"], "tolerance is out of range"),
        (["goodput", "--tolerance", "nan"], "tolerance is out of range"),
        (["calibrate", "nowhere/machine.json"], "no such folder"),
        (["run", "--trace", "nowhere.csv"], "there is no such trace file"),
    ],
)
def test_wrong_questions_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    from leafage.cli import main

    assert main(["sim", *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and message.lower() in told.err.lower() and told.err.count("\n") == 1


def test_run_prints_a_table_and_json_has_every_metric(
    leafage: Callable, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from leafage.cli import main
    from leafage.sim.summary import METRICS

    done = leafage("sim", "run", *SMALL, "-w", "alpaca", "--json", "run.json")
    assert done.returncode == 0
    assert "smollm2-135m on l4" in done.stdout and "20 requests in" in done.stdout
    for title in ("TTFT", "SLO attainment", "waste: internal", "longest wait"):
        assert title in done.stdout
    told = json.loads((tmp_path / "run.json").read_text())
    assert set(told["metrics"]) == set(METRICS) and told["metrics"]["num_requests"] == 20
    assert told["scenario"]["workload"] == {"name": "alpaca", "num_requests": 20, "rate": 20, "seed": 0}
    assert len(told["timeline"]["edges"]) == len(told["timeline"]["batch"]) + 1
    assert main(["sim", "run", *SMALL, "-w", "alpaca", "--json=-"]) == 0
    assert json.loads(capsys.readouterr().out) == told, "the same to the last bit"


def test_requests_that_cannot_run_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    from leafage.cli import main

    assert main(["sim", "run", *SMALL, "--max-model-len", "256"]) == 0
    told = capsys.readouterr().err
    assert "of 20 requests were refused. The first: " in told and "256 (max_model_len)" in told


def test_plan_answers_and_exits_by_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafage.cli import main
    from leafage.sim import plan as planning

    monkeypatch.setattr(planning, "TUNED", {"policy": ("fcfs", "first_fit")})
    assert main(["sim", "plan", *SMALL, *FULL, "--max-devices", "2"]) == 0
    told = capsys.readouterr()
    assert "1 x l4: 1 replica, with 100.0 % of the requests within the level." in told.out
    assert "tensor parallel 2: tensor_parallel does not divide the heads" in told.err
    assert "policy = fcfs, the default" in told.out and "Paging buys little here" in told.out
    assert main(["sim", "plan", *SMALL, *FULL, "--max-devices", "1", "--slo", "tpot=1ms"]) == 1
    assert "No number of l4 that was tried meets the level" in capsys.readouterr().out


def test_a_wrong_trace_names_the_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from leafage.cli import main

    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,-3,5\n")
    assert main(["sim", "run", "--trace", str(tmp_path / "trace.csv")]) == 1
    assert "trace.csv, line 3" in capsys.readouterr().err
    assert main(["sim", "run", "--trace", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_sweep_compare_and_goodput(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from leafage.cli import main

    def told(*words: str) -> str:
        assert main(["sim", *words, *SMALL, *FULL]) == 0
        return capsys.readouterr().out

    table = told("sweep", "block_size=16,64", "seed=0,1", "--metric", "stored,throughput")
    assert table.splitlines()[0].split() == ["block_size", "seed", "stored", "throughput"]
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        [size, seed] for size in ("16", "64") for seed in "01"
    ]
    path = tmp_path / "compare.json"
    table = told("compare", "kv=paged", "kv=reserved-max,block_size=32", "--seeds", "2", "--json", str(path))
    assert "kv=reserved-max, block_size=32" in table.splitlines()[0] and "±" in table
    (first, second) = json.loads(path.read_text())["points"]
    assert second["settings"] == {"kv": "reserved-max", "block_size": 32} and len(first["runs"]) == 2
    words = ("--slo", "ttft=50ms,tpot=10ms", "--seeds", "1", "--tolerance", "1")
    table = told("goodput", "kv=paged", "kv=reserved-max", *words)
    assert "largest rate at which 90 % of the requests meet TTFT 50 ms, TPOT 10 ms" in table
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["kv=paged", "kv=reserved-max"]
