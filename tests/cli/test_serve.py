"""`leafage serve` as a user starts it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from leafage.resources import available_cpus
from tests.server.process import ask, get, refused, started

MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def test_help_fits_two_screens() -> None:
    command = [sys.executable, "-m", "leafage", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 100 and max(map(len, lines)) <= 120
    for flag in ("--api-key-file", "--max-queue", "--drain-timeout", "--kv-cache-tokens", "--config"):
        assert flag in done.stdout


def test_what_it_says_at_the_start_is_true(tiny_folder: Path) -> None:
    with started(str(tiny_folder), "--kv-cache-tokens", "4096", "--swap-bytes", "64KiB") as server:
        server.wait_for(f"http://127.0.0.1:{server.port}")
        threads = re.search(r"(\d+) threads?, kernels: (\w+)", server.text)
        assert threads is not None and int(threads[1]) == available_cpus()
        assert "KV pool 4,096 tokens" in server.text and "swap space" in server.text
        curl = re.search(r"curl (\S+) -H '(\S+): (\S+)' -d '(.*)'", server.text)
        assert curl is not None and (curl[2], curl[3]) == ("Content-Type", "application/json")
        path = curl[1].removeprefix(f"http://127.0.0.1:{server.port}")
        assert ask(server.port, path, curl[4].encode()).status == 200
        assert get(server.port, "/docs").status == 200


def test_flags_variables_and_file_reach_the_server(tiny_folder: Path, tmp_path: Path) -> None:
    keys, config = tmp_path / "keys", tmp_path / "leafage.toml"
    keys.write_text("alpha\n")
    config.write_text(
        f'api_key_file = "{keys}"\ndocs = false\nthreads = 1\nserved_model_name = ["one", "two"]\n'
    )
    flags = (str(tiny_folder), "--config", str(config), "--host", "0.0.0.0", "--access-log")
    with started(*flags, LEAFAGE_SERVED_MODEL_NAME="three", LEAFAGE_API_KEY="beta") as server:
        assert "warning" not in server.text
        for key in ("alpha", "beta"):
            headers = (f"Authorization: Bearer {key}",)
            models = get(server.port, "/v1/models", headers=headers).json["data"]
            assert [model["id"] for model in models] == ["three"]
        assert get(server.port, "/v1/models").status == 401
        assert get(server.port, "/docs").status == 404
        server.wait_for("GET /v1/models 401")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0


def test_the_access_log_has_a_line_for_each_request(tiny_folder: Path) -> None:
    with started(str(tiny_folder), "--threads", "1", "--access-log") as server:
        ask(server.port, "/v1/chat/completions", MESSAGES)
        ask(
            server.port,
            "/v1/completions",
            {"prompt": "abcd", "max_tokens": 5, "stream": True, "ignore_eos": True},
        )
        get(server.port, "/a%0Ab")
        server.wait_for("GET /a\\nb 404")
        time = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
        assert re.search(time + r" POST /v1/chat/completions 200 [\d.]+ ms 20\+\d tokens$", server.text, re.M)
        assert re.search(time + r" POST /v1/completions 200 [\d.]+ ms 4\+5 tokens$", server.text, re.M)


def test_an_address_that_others_reach_without_a_key_is_warned_of(tiny_folder: Path) -> None:
    with started(str(tiny_folder), "--threads", "1", "--host", "0.0.0.0") as server:
        assert "warning: everyone who reaches 0.0.0.0 may use this server" in server.text
        assert f"http://127.0.0.1:{server.port}" in server.text


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = refused("no-such-model", "--port", str(port))  # seen before the model is looked for
    assert code == 1
    assert (
        text.startswith(f"error: cannot listen at 127.0.0.1:{port}: address already in use")
        and text.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (("--max-queue", "-1"), {}, "max_queue is out of range (--max-queue); got -1"),
        ((), {"LEAFAGE_PORT": "70000"}, "port is out of range (LEAFAGE_PORT)"),
        ((), {"LEAFAGE_MAX_QEUE": "1"}, "Did you mean LEAFAGE_MAX_QUEUE?"),
        (("--port", "abc"), {}, "--port"),
        (("--max-qeue", "1"), {}, "Did you mean --max-queue?"),
        (("--rate-limit", "5"), {}, "rate_limit counts the requests of each API key"),
    ],
)
def test_wrong_settings_are_refused_before_the_model_is_looked_for(
    words: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    code, text = refused("no-such-model", *words, **environment)
    assert code == 2 and message in text and "Traceback" not in text


def test_a_setting_that_does_not_fit_the_model_is_named_too(tiny_folder: Path) -> None:
    code, text = refused(str(tiny_folder), "--port", "0", LEAFAGE_MAX_MODEL_LEN="99999")
    assert code == 2 and "(LEAFAGE_MAX_MODEL_LEN)" in text


@pytest.mark.skipif(
    available_cpus() < 2 or shutil.which("taskset") is None, reason="needs two CPUs and taskset"
)
def test_c04_two_servers_under_disjoint_masks_share_no_core(tiny_folder: Path) -> None:
    """Neither takes a thread more than its mask has CPUs, nor leaves it."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with started(str(tiny_folder), cpus=[cpus[0]]) as one, started(str(tiny_folder), cpus=[cpus[1]]) as other:
        seen = []
        for server in (one, other):
            assert ask(server.port, "/v1/completions", {"prompt": "abc", "max_tokens": 20}).status == 200
            assert ", 1 thread, kernels" in server.text
            tasks = Path(f"/proc/{server.pid}/task").iterdir()
            seen.append({cpu for task in tasks for cpu in os.sched_getaffinity(int(task.name))})
        assert seen == [{cpus[0]}, {cpus[1]}]
