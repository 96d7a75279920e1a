"""The server's request log, from the wire to the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from leafage.engine.request_log import RequestLog, RequestLogWarning
from leafage.errors import InvalidParameterError
from leafage.server.app import create_app
from leafage.sim.trace_file import TraceFile
from tests.server.conftest import context_over, serving, tiny_build
from tests.server.routes.test_metrics import samples

if TYPE_CHECKING:
    from leafage.build import Assets

BODY = {"prompt": "a secret plan for tomorrow", "max_tokens": 4, "ignore_eos": True, "user": "alice"}


@contextmanager
def logging_to(path: Path, assets: Assets, **settings: Any) -> Iterator[tuple[str, RequestLog]]:
    """A server with a log: its URL, and the log."""
    settings |= {"request_log": str(path)}
    with context_over(tiny_build(assets), **settings) as context, serving(create_app(context)) as url:
        assert context.request_log is not None
        yield url, context.request_log


def test_requests_are_logged_without_text_and_the_simulator_reads_them(
    tiny_assets: Assets, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path, tiny_assets) as (url, log):
        for _ in range(3):
            httpx.post(f"{url}/v1/completions", json=BODY).raise_for_status()
    assert not log._thread.is_alive(), "closed with the server"
    text = path.read_text()
    header, *lines = [json.loads(line) for line in text.splitlines()]
    assert header["leafage_request_log"] == 1 and len(lines) == 3
    assert [(line["prompt_tokens"], line["cached_tokens"]) for line in lines] == [(26, 0), (26, 25), (26, 25)]
    assert all(line["finished"] >= line["arrival"] + line["ttft"] for line in lines)
    assert "alice" not in text and "secret" not in text
    requests = list(TraceFile(str(path)))
    assert [(len(request.prompt), len(request.output)) for request in requests] == [(26, 4)] * 3


def test_tenants_as_they_are(tiny_assets: Assets, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path, tiny_assets, request_log_tenants="plain") as (url, _):
        httpx.post(f"{url}/v1/completions", json=BODY).raise_for_status()
    assert json.loads(path.read_text().splitlines()[1])["tenant"] == "alice"


def test_a_full_disk_harms_no_request_and_shows_in_the_metrics(tiny_assets: Assets, tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", tiny_assets) as (url, log):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, log._file)
        os.close(full)
        with pytest.warns(RequestLogWarning, match="No space left"):
            for _ in range(3):
                assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 200
            log.flush()
            assert samples(url)["request_log_lost_total"] == 3


def test_two_servers_do_not_write_one_log(tiny_assets: Assets, tmp_path: Path) -> None:
    """Times of lines count from the header above them."""
    path = tmp_path / "requests.jsonl"
    told = pytest.raises(InvalidParameterError, match="request_log is being written by another engine")
    with logging_to(path, tiny_assets), told, logging_to(path, tiny_assets):
        pass
    with logging_to(path, tiny_assets) as (url, _):
        httpx.post(f"{url}/v1/completions", json=BODY).raise_for_status()
    assert len(path.read_text().splitlines()) == 3


def test_a_log_that_was_copied_and_emptied_is_one_again(tiny_assets: Assets, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path, tiny_assets) as (url, log):
        for _ in range(2):
            os.truncate(path, 0)
            httpx.post(f"{url}/v1/completions", json=BODY).raise_for_status()
            httpx.post(f"{url}/v1/completions", json=BODY).raise_for_status()
            log.flush()
            assert len(path.read_text().splitlines()) == 3 and len(list(TraceFile(str(path)))) == 2


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tiny_assets: Assets, tmp_path: Path) -> None:
    told = pytest.raises(InvalidParameterError, match="request_log cannot be written: No such file")
    with told, logging_to(tmp_path / "no" / "such" / "folder", tiny_assets):
        pass
