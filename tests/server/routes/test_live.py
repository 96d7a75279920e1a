"""The live page's routes over a real socket: files, events, a closer look; and who may read texts."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from leafage.build import Assets
from leafage.core.batch import Batch, StepOutput
from leafage.server.app import create_app
from leafage.server.config import ServerConfig
from leafage.server.live import feed as feed_module
from leafage.server.live.feed import Feed
from leafage.server.routes.live import shows_texts
from tests.server.conftest import context_over, serving, tiny_build

PROMPT = "Once upon a time there was a tiny model that"


@pytest.fixture(autouse=True)
def _many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "INTERVAL", 0.1)
    monkeypatch.setattr(feed_module, "MAX_SHARE", 1.0)


@contextmanager
def slow_server(assets: Assets, **settings: Any) -> Iterator[str]:
    """The tiny model, 10 ms a step; `settings` are EngineConfig's."""
    build = tiny_build(assets, **settings)
    execute = build.engine.executor.execute

    def slowly(batch: Batch) -> StepOutput:
        time.sleep(0.01)
        return execute(batch)

    build.engine.executor = SimpleNamespace(execute=slowly)
    with context_over(build) as context, serving(create_app(context)) as url:
        yield url


@contextmanager
def watching(url: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """The events of the page: name and data."""
    with httpx.stream("GET", f"{url}/live/events", timeout=10) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response)


def _events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line:
            yield name, json.loads(line.removeprefix("data: "))


def complete(url: str, max_tokens: int = 30, prompt: str = PROMPT) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()


def state_where(events: Iterator[tuple[str, dict[str, Any]]], true: Any) -> dict[str, Any]:
    return next(data for name, data in events if name == "state" and true(data))


def test_the_page_names_only_files_that_are_there_and_no_other_host(tiny_url: str) -> None:
    page = httpx.get(tiny_url)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    seen = {"/"}
    files = [("/", page.text)]
    for path, text in files:  # grows as it goes
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        names = re.findall(r'(?:src|href)="([^"#]+)"', text) if path == "/" else []
        names += [f"live/static/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
        for name in names:
            if name not in seen:
                seen.add(name)
                response = httpx.get(f"{tiny_url}/{name}")
                assert response.status_code == 200, name
                assert response.headers["x-content-type-options"] == "nosniff"
                files.append((name, response.text))
    assert {"live/static/live.css", "live/static/tree.js", "live/static/format.js"} <= seen


def test_files_are_fetched_once(tiny_url: str) -> None:
    tag = httpx.get(f"{tiny_url}/live/static/live.js").headers["etag"]
    again = httpx.get(f"{tiny_url}/live/static/live.js", headers={"If-None-Match": tag})
    assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize("name", ["nothing.js", "..%2ffeed.py", "%2e%2e%2f__init__.py", ".", "live.js%00"])
def test_other_files_are_not_given_out(tiny_url: str, name: str) -> None:
    assert httpx.get(f"{tiny_url}/live/static/{name}").status_code == 404


def test_events_tell_what_runs(tiny_assets: Assets) -> None:
    with slow_server(tiny_assets) as url, watching(url) as events:
        name, hello = next(events)
        assert name == "hello"
        assert hello["max_model_len"] == 4096 and hello["texts"] is True
        assert {"block_bytes", "weight_bytes", "kernels", "prefix_index"} <= hello.keys()
        asking = threading.Thread(target=complete, args=(url, 60))
        asking.start()
        state = state_where(events, lambda state: state["running"] and state["running"][0]["output"] > 1)
        [row] = state["running"]
        assert (row["prompt"], row["computed"], row["state"]) == (len(PROMPT), len(PROMPT), "decode")
        assert state["blocks"]["active"] >= 3 and state["counters"]["generated"] > 1
        asking.join()
        assert state_where(events, lambda state: not state["running"])["ended"][0]["output"] == 60
        assert next(data for name, data in events if name == "second")["running"] == 0


def test_looking_closer(tiny_url: str) -> None:
    complete(tiny_url)
    with watching(tiny_url) as events:
        tree = state_where(events, lambda state: state["tree"]["edges"])["tree"]
    block, node, parent, tokens, *_ = tree["edges"][0]
    assert parent == -1
    found = httpx.get(
        f"{tiny_url}/live/inspect", params={"edge": block, "node": node, "tokens": tokens}
    ).json()
    assert found["text"][0].startswith(PROMPT) and found["holders"] == []
    assert found["num_tokens"] <= tokens and "tokens" not in found
    found = httpx.get(f"{tiny_url}/live/inspect?block={block}").json()
    assert found["state"] == "cached" and found["blocks"] == [[block, 1]]


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("edge=1", 400), ("block=-1", 400), ("block=x", 400), ("block=9" + "9" * 30, 400),
     ("block=%C2%B2", 400), ("block=99999", 404), ("request=99999", 404),
     ("edge=0&node=99999&tokens=5", 404)],
)  # fmt: skip
def test_looking_at_what_is_not_there(tiny_url: str, query: str, status: int) -> None:
    response = httpx.get(f"{tiny_url}/live/inspect?{query}")
    assert response.status_code == status and response.json()["error"]["message"]


def test_texts_stay_hidden_where_they_should(tiny_assets: Assets) -> None:
    with (
        context_over(tiny_build(tiny_assets), live_texts="hidden") as context,
        serving(create_app(context)) as url,
    ):
        complete(url)
        with watching(url) as events:
            assert next(events)[1]["texts"] is False
            [edge] = state_where(events, lambda state: state["tree"]["edges"])["tree"]["edges"]
        query = {"edge": edge[0], "node": edge[1], "tokens": edge[3]}
        found = httpx.get(f"{url}/live/inspect", params=query).json()
        assert found["num_tokens"] > 0 and "Once" not in json.dumps(found) and "text" not in found
        assert not any(isinstance(value, list) and len(value) > 9 for value in found.values())


@pytest.mark.parametrize(
    "settings",
    [{"prefix_index": "none"}, {"prefix_index": "hash_chain"}, {"kv": "reserved-max", "max_model_len": 2048},
     {"kv": "reserved-pow2-buddy", "max_model_len": 2048}, {"kv": "reserved-oracle-scattered"}],
)  # fmt: skip
def test_every_kind_of_memory_is_drawn(tiny_assets: Assets, settings: dict[str, Any]) -> None:
    with context_over(tiny_build(tiny_assets, **settings)) as context, serving(create_app(context)) as url:
        with watching(url) as events:
            next(events)
            asking = threading.Thread(target=complete, args=(url, 1500))
            asking.start()
            state = state_where(events, lambda state: state["running"])
            asking.join()
        blocks = state["blocks"]
        assert (
            blocks["free"] + blocks["cached"] + blocks["active"]
            == blocks["total"]
            == sum(blocks["states"].values())
        )
        assert blocks["active"] > 0
        assert bool(state["tree"]["edges"]) == ("hash_chain" in settings.values())


def test_a_page_that_is_closed_is_not_served_on(tiny_assets: Assets) -> None:
    with context_over(tiny_build(tiny_assets)) as context:
        app = create_app(context)
        with serving(app) as url:
            with watching(url) as events:
                next(events)
                feed: Feed = app.state.live_feed
                assert feed.num_watchers == 1
            for _ in range(200):
                if feed.num_watchers == 0:
                    break
                threading.Event().wait(0.02)
            assert feed.num_watchers == 0


def request(config: ServerConfig, host: str = "127.0.0.1:8000", **headers: str) -> Request:
    app = SimpleNamespace(state=SimpleNamespace(context=SimpleNamespace(config=config)))
    raw = [(b"host", host.encode())] + [(k.encode(), v.encode()) for k, v in headers.items()]
    return Request(
        {"type": "http", "app": app, "headers": raw, "path": "/", "scheme": "http", "query_string": b""}
    )


def test_texts_are_for_this_machine_alone_unless_said_otherwise() -> None:
    assert shows_texts(request(ServerConfig()))
    assert shows_texts(request(ServerConfig(), "localhost:8000"))
    assert shows_texts(request(ServerConfig(host="::1"), "[::1]:8000"))
    assert not shows_texts(request(ServerConfig(host="0.0.0.0")))
    assert not shows_texts(request(ServerConfig(), "rebound.example:8000"))
    assert not shows_texts(request(ServerConfig(), **{"x-forwarded-for": "10.0.0.1"}))
    assert not shows_texts(request(ServerConfig(api_key=("key",))))
    assert shows_texts(request(ServerConfig(host="0.0.0.0", live_texts="shown"), "rebound.example"))
    assert not shows_texts(request(ServerConfig(live_texts="hidden")))


def test_the_page_can_be_left_out(tiny_assets: Assets) -> None:
    with context_over(tiny_build(tiny_assets), live=False) as context, serving(create_app(context)) as url:
        for path in ("/", "/live/events", "/live/static/live.js", "/live/inspect?block=0"):
            assert httpx.get(url + path).status_code == 404


def test_with_keys_the_page_is_open_and_what_it_shows_is_not(tiny_assets: Assets) -> None:
    with (
        context_over(tiny_build(tiny_assets), api_key=("k1",)) as context,
        serving(create_app(context)) as url,
    ):
        assert httpx.get(url).status_code == 200
        assert httpx.get(f"{url}/live/static/live.js").status_code == 200
        for path in ("/live/events", "/live/inspect?block=0"):
            assert httpx.get(url + path).status_code == 401
        key = {"Authorization": "Bearer k1"}
        assert httpx.get(f"{url}/live/inspect?block=0", headers=key).json()["state"] == "free"
