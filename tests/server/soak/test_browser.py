"""The live page in headless Chromium, over `leafage serve` with the real model: what it shows in every state.
And the page at /docs.

Writes pictures of what it saw to the folder SOAK_SCREENSHOTS, when that is set: look at them. Needs
`pip install playwright` and the program chromium; no browser is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.process import started
from tests.server.soak.rig import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.soak

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WIDE, NARROW = (1280, 900), (390, 844)
SHOTS = "\n".join(
    f"Q: What is {a} plus {b}?\nA: Adding {a} and {b} gives {a + b}."
    for a, b in ((i * 7 % 23, i * 5 % 19) for i in range(14))
)
QUESTIONS = """Name three rivers in France. What is photosynthesis? Write a haiku about rain. Who wrote Faust?
Explain gravity to a child. List five fruits. What does a compiler do? Describe the moon. How do bees fly?
What is a prime number? Give me a recipe for soup. What is jazz? Why is the sky blue? Tell me about Rome.
What is an atom? How tall is Everest?"""


@dataclass
class Window:
    """A page, what went wrong in it, and whom it talked to.

    Attributes:
        expected: console errors that belong to the test, a pattern.
    """

    page: Page
    name: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    expected: str = ""

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    @property
    def tree(self) -> str:
        """All words of the drawing."""
        return " ".join(self.page.locator("#tree-drawing text").all_text_contents())

    def number(self, selector: str) -> float:
        found = re.search(r"-?[\d,.]+", self.text(selector))
        assert found is not None, f"no number in {selector}"
        return float(found[0].replace(",", ""))

    def until(self, what: str, true: Callable[[], bool], seconds: float = 30.0) -> None:
        """The page's own policy forbids what Playwright would run in it to wait."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"never: {what}; the status is {self.text('#status')!r}"
            self.page.wait_for_timeout(50)

    def until_status(self, words: str, seconds: float = 30.0) -> None:
        self.until(words, lambda: words in self.text("#status"), seconds)

    def shot(self, name: str, *, whole: bool = True) -> None:
        folder = os.environ.get("SOAK_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{self.name}-{name}.png", full_page=whole)

    def counts(self) -> dict[str, int]:
        """The legend of the block pool."""
        items = self.page.locator("#pool-legend li").all_inner_texts()
        return {name: int(number.replace(",", "")) for name, number in (item.split() for item in items)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    program = shutil.which("chromium")
    if sync_playwright is None or program is None:
        why = "needs the program chromium and `pip install playwright`"
        if os.environ.get("LEAFAGE_REQUIRE_PROGRAMS") == "1":
            pytest.fail(why)
        pytest.skip(why)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Window]]:
    """window(url, size, scheme) -> Window. At the end: no error, and no request to another host."""
    windows: list[Window] = []

    def open_window(url: str, size: tuple[int, int] = WIDE, scheme: Any = "light") -> Window:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            device_scale_factor=2 if size == NARROW else 1,
        )
        page = context.new_page()
        name = request.node.name.removeprefix("test_")
        opened = Window(page, f"{name}-{size[0]}-{scheme}")
        page.on("console", lambda m: opened.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.on("request", lambda sent: opened.hosts.add(urlsplit(sent.url).netloc))
        page.goto(url)
        windows.append(opened)
        return opened

    yield open_window
    for opened in windows:
        host = urlsplit(opened.page.url).netloc
        assert opened.hosts == {host}, "the page talked to somebody else"
        wrong = [error for error in opened.errors if not re.search(opened.expected or "$^", error)]
        assert not wrong, wrong
        assert (
            opened.page.evaluate("document.documentElement.scrollWidth") <= opened.page.viewport_size["width"]
        )
        opened.page.context.close()


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    """A server over SmolLM2, for the module."""
    with serving(str(smollm2_path), "--kv-cache-tokens", "65536") as server:
        yield server.url


@contextmanager
def traffic(url: str, bodies: list[dict[str, Any]]) -> Iterator[None]:
    """Completions that run while the block does; they end with it."""
    leaving = threading.Event()

    def ask(body: dict[str, Any]) -> None:
        body = {"stream": True, "ignore_eos": True, "temperature": 0.8, **body}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            for _ in response.iter_lines():
                if leaving.is_set():
                    return

    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leaving.set()
        for thread in threads:
            thread.join(60)


def few_shot(count: int, max_tokens: int) -> list[dict[str, Any]]:
    """Requests with the same examples and questions of their own."""
    questions = re.findall(r"[^.?]+[.?]", " ".join(QUESTIONS.split()))
    return [
        {"prompt": f"{SHOTS}\nQ: {questions[i % 16].strip()}\nA:", "max_tokens": max_tokens, "seed": i}
        for i in range(count)
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_idle(url: str, window: Callable[..., Window], size: tuple[int, int], scheme: str) -> None:
    view = window(url, size, scheme)
    view.until_status("idle")
    view.until("the pool", lambda: "4,096 blocks" in view.text("#pool-note"))
    assert "SmolLM2" in view.text("#model") and "threads" in view.text("#facts")
    assert sum(view.counts().values()) == 4096
    assert "of 1.4 GiB" in view.text("#memory") and "weights" in view.text("#memory")
    view.shot("idle")


def test_busy(url: str, window: Callable[..., Window]) -> None:
    """Sixteen few-shot requests: rows, the shared prefix on the map and in the tree, and a closer look."""
    view, dark, narrow = window(url), window(url, WIDE, "dark"), window(url, NARROW)
    rows = view.page.locator("#rows tr.decode")
    with traffic(url, few_shot(16, 3000)):
        view.until("sixteen rows", lambda: rows.count() == 16)
        view.until_status("running")
        view.until("tokens a second", lambda: view.number("#generated .value") > 10)
        assert view.number("#load .value") == 16
        assert view.number("#prompts .value") > 80  # percent from cache
        counts = view.counts()
        assert sum(counts.values()) == 4096 and counts["shared"] >= 20 and counts["private"] >= 16
        cached, prompt = map(int, view.text("#rows tr.decode:nth-child(9) td:nth-child(3)").split(" / "))
        assert 0.9 * prompt < cached < prompt
        assert view.page.locator("#tree-drawing .edge.shared").count() >= 1
        assert "× 16" in view.tree
        assert all(f"#{n}" in view.tree for n in _numbers(view)[:8])
        view.page.wait_for_timeout(6000)
        for one in (view, dark, narrow):
            one.shot("busy")
        _look_closer(view)
    view.until("none runs", lambda: rows.count() == 0)
    assert "its client left" in view.text("#rows")


def _numbers(view: Window) -> list[int]:
    return [int(name.removeprefix("#")) for name in view.page.locator("#rows tr.decode th").all_inner_texts()]


def _look_closer(view: Window) -> None:
    """By pointer and by keyboard."""
    page = view.page
    page.hover("#rows tr.decode:nth-child(3)")
    view.until("the prompt", lambda: "What is 0 plus 0?" in view.text("#peek"))
    assert page.locator("#tree-drawing .edge.lit").count() >= 2
    view.shot("row", whole=False)
    page.mouse.move(2, 2)
    view.until("nothing", lambda: page.locator("#peek").is_hidden())
    edge = page.locator("#tree-drawing .edge.shared .target").first.bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 60, edge["y"] + edge["height"] / 2)
    view.until("who shares it", lambda: "shared by 16" in view.text("#peek"))
    view.shot("edge", whole=False)
    page.focus("#pool-map")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    view.until("a block", lambda: re.match(r"Block \d+", view.text("#peek")) is not None)
    view.shot("block", whole=False)
    page.keyboard.press("Escape")
    assert page.locator("#peek").is_hidden()
    page.focus("#tree-scroll")
    page.keyboard.press("ArrowDown")
    view.until("an edge", lambda: view.text("#peek").startswith("Tokens 0 to"))
    page.focus("#rows-box")
    page.keyboard.press("ArrowDown")
    view.until("a request", lambda: view.text("#peek").startswith("#"))


def test_waiting_and_preempted(smollm2_path: Path, window: Callable[..., Window]) -> None:
    """A pool that is too small for all."""
    flags = ("--kv-cache-tokens", "2048", "--max-model-len", "1500", "--preemption", "swap")
    with serving(str(smollm2_path), *flags) as server:
        view, narrow = window(server.url), window(server.url, NARROW, "dark")
        view.expected = narrow.expected = "ERR_"  # it ends before they do
        with traffic(server.url, few_shot(24, 600)):
            view.until("one waits", lambda: view.page.locator("#rows tr.waiting").count() > 0)
            swapped = "#rows tr.swapped, #rows tr.preempted"
            view.until("one gave way", lambda: view.page.locator(swapped).count() > 0, 60)
            view.shot("swapped")
            narrow.shot("swapped")
            assert "needs" in view.text("#rows")
            table = narrow.page.locator("#rows-box")
            assert table.evaluate("box => box.scrollWidth <= box.clientWidth"), "columns are out of sight"
            assert sum(view.counts().values()) == 128
            assert view.number("#use .value") > 50


def test_a_full_batch(tiny_folder: Path, window: Callable[..., Window]) -> None:
    """Who waits for others to end does not wait for memory, nor does who waits behind one who does."""
    with serving(str(tiny_folder), "--kv-cache-tokens", "65536", "--max-num-seqs", "4") as server:
        view = window(server.url)
        view.expected = "ERR_"
        with traffic(server.url, [{"prompt": "abc", "max_tokens": 4000, "n": n} for n in (3, 3, 1)]):
            full = "waits, the batch is full"
            view.until("some wait", lambda: full in view.text("#rows"))
            view.page.wait_for_timeout(500)  # whichever came first: of three, at least one waits from here on
            rows = view.page.locator("#rows tr.waiting").all_inner_texts()
            assert rows and all(full in row for row in rows)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_chat(url: str, window: Callable[..., Window], size: tuple[int, int]) -> None:
    """Two turns: the second finds the first in the cache."""
    view = window(url, size)
    view.page.route("**/v1/chat/completions", _of_bounded_length)
    view.until_status("idle")
    for question in (f"Tell me in two sentences what a leaf is. ({size[0]})", "And what is a tree?"):
        view.page.fill("#chat-text", question)
        view.page.keyboard.press("Enter")
        view.until("it answers", lambda: view.text("#chat-send") == "Stop")
        view.until("it has answered", lambda: view.text("#chat-send") == "Send", 120)
    view.shot("chat")
    answers = view.page.locator("#messages .assistant").all_inner_texts()
    assert len(answers) == 2 and all(answers)
    notes = view.page.locator("#messages .note").all_inner_texts()
    for note in notes:
        assert re.search(r"\d+ of \d+ prompt tokens cached", note), note
        assert re.search(r"first token [\d.]+ m?s", note), note
        assert re.search(r"[\d,]+ tokens at [\d.,]+ a second", note), note
    cached, prompt = map(int, re.findall(r"(\d+) of (\d+)", notes[1])[0])
    assert 0 < cached < prompt and cached > int(notes[0].split()[0])
    view.page.click("#chat-new")
    assert view.page.locator("#messages .assistant").count() == 0


def _of_bounded_length(route: Route) -> None:
    """What is drawn at random has no length that a test could wait for."""
    assert route.request.post_data_json["temperature"] == 0.7  # as `leafage chat`
    route.continue_(post_data={**route.request.post_data_json, "max_tokens": 80})


def test_an_answer_can_be_stopped(url: str, window: Callable[..., Window]) -> None:
    view = window(url)
    view.page.fill("#chat-text", "Count from one to a thousand, in words.")
    view.page.keyboard.press("Enter")
    view.until("it answers", lambda: view.page.locator("#messages .assistant:not(:empty)").count() > 0)
    view.page.click("#chat-send")
    view.until("stopped", lambda: "stopped" in view.text("#messages"))
    view.until("aborted", lambda: "its client left" in view.text("#rows"))
    view.page.fill("#chat-text", "")
    view.page.evaluate("document.getElementById('chat-text').value = 'x'.repeat(60000)")
    view.page.click("#chat-send")
    view.expected = "400"
    view.until("refused", lambda: view.page.locator("#messages .trouble").count() == 1, 60)


def test_keys_and_texts(smollm2_path: Path, window: Callable[..., Window]) -> None:
    """With a key the page asks for it, and keeps texts to itself."""
    with serving(str(smollm2_path), "--api-key", "right", "--kv-cache-tokens", "4096") as server:
        view = window(server.url)
        view.expected = "401|ERR_"
        view.until_status("key needed")
        view.shot("key")
        view.page.fill("#key-value", "wrong")
        view.page.keyboard.press("Enter")
        view.until("a second question", lambda: "not known here" in view.text("#key label"))
        view.page.fill("#key-value", "right")
        view.page.keyboard.press("Enter")
        view.until_status("idle")
        assert view.page.locator("#key").is_hidden()
        view.page.fill("#chat-text", "Hello")
        view.page.keyboard.press("Enter")
        view.until("an edge", lambda: view.page.locator("#tree-drawing .edge").count() > 0)
        view.page.focus("#tree-scroll")
        view.page.keyboard.press("ArrowDown")
        view.until("no text", lambda: "--live-texts" in view.text("#peek"))
        assert "Hello" not in view.text("#peek")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--prefix-index", "none"), "no prefix index"),
        (("--kv", "reserved-max", "--max-model-len", "512"), "never shared"),
        (("--prefix-index", "hash_chain"), "hash chain"),
    ],
)
def test_other_memory(
    tiny_folder: Path, window: Callable[..., Window], flags: tuple[str, ...], words: str
) -> None:
    with serving(str(tiny_folder), "--kv-cache-tokens", "4096", *flags) as server:
        view = window(server.url)
        view.expected = "ERR_"
        view.until(words, lambda: words in view.text("#tree"))
        with traffic(server.url, [{"prompt": "abc " * 40, "max_tokens": 300} for _ in range(20)]):
            view.until("blocks in use", lambda: view.counts()["private"] > 0)
            assert sum(view.counts().values()) == 256
            assert ("reserved" in view.counts()) == ("--kv" in flags)
            view.shot("-".join(flags).strip("-"))


def test_a_server_that_hangs_goes_away_and_comes_back(
    tiny_folder: Path, window: Callable[..., Window]
) -> None:
    with started(str(tiny_folder), "--kv-cache-tokens", "4096") as server:
        port = server.port
        view = window(f"http://127.0.0.1:{port}")
        view.expected = "ERR_"
        view.until_status("idle")
        os.kill(server.pid, signal.SIGSTOP)
        view.until_status("connection lost")
        assert "does not answer" in view.text("#notice")
        os.kill(server.pid, signal.SIGCONT)
        view.until_status("idle")
        assert view.page.locator("#notice").is_hidden()
        os.kill(server.pid, signal.SIGKILL)
        view.until_status("connection lost")
        view.shot("lost")
    with started(str(tiny_folder), "--kv-cache-tokens", "2048", "--port", str(port)):
        view.until_status("idle")
        view.until("the new pool", lambda: "128 blocks" in view.text("#pool-note"))


def test_a_server_that_drains(smollm2_path: Path, window: Callable[..., Window]) -> None:
    with started(str(smollm2_path), "--kv-cache-tokens", "8192", "--drain-timeout", "5") as server:
        url = f"http://127.0.0.1:{server.port}"
        view = window(url)
        view.expected = "ERR_"
        with traffic(url, few_shot(1, 4000)):
            view.until_status("running")
            os.kill(server.pid, signal.SIGTERM)
            view.until_status("draining")
            assert "new ones are refused" in view.text("#notice")
            view.shot("draining")
            view.until_status("connection lost")


def test_a_page_that_nobody_sees_lets_go(url: str, window: Callable[..., Window]) -> None:
    """It is told that it is hidden, as a browser does with a tab in the background."""
    view = window(url)
    view.until_status("idle")
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    view.page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    view.until("paused", lambda: "paused" in view.text("#status"), 40)
    view.page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
    view.until_status("idle")


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_api_page_shows_fields_and_sends_requests(
    url: str, window: Callable[..., Window], size: tuple[int, int], scheme: str
) -> None:
    opened = window(f"{url}/docs", size, scheme)
    page = opened.page
    page.fill("#find", "beam_width")
    assert page.locator(".endpoint:visible").count() == 2
    box = page.locator("[id='post-/v1/completions']")
    box.locator("summary").first.click()
    assert box.locator("mark").inner_text() == "beam_width"
    box.locator("text=fields").first.click()
    box.locator("textarea").fill('{"prompt": "One, two,", "max_tokens": 5, "stream": true}')
    box.locator("button", has_text="Send").click()
    box.locator("output", has_text="200 OK").wait_for()
    assert box.locator(".result").inner_text().endswith("data: [DONE]\n\n")
    opened.shot("api")
