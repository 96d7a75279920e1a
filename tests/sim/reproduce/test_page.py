"""The page: every number with its source, every verdict."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from leafage.sim.reproduce import page
from leafage.sim.reproduce.demo import Check, Column, Demo, Outcome, Source, Table, Tools
from leafage.sim.reproduce.runner import Report


def never(tools: Tools) -> Outcome:
    raise AssertionError


@pytest.fixture
def reports() -> list[Report]:
    table = Table.compared("A < B | C", [("tok/s", 216.8, 217, "2.7x")], format="{:.1f}")
    checks = [Check.band("tok/s", 216.8, 215, 219), Check.exact("blocks", 747, 748)]
    return [
        Report(
            Demo("one", ("R1",), "One", never), Outcome([table], checks, ["`n` is **600**."]), seconds=1.5
        ),
        Report(Demo("two", ("R2",), "Two", pending="not built")),
        Report(Demo("three", ("R3",), "Three", never), error="Traceback\nValueError: <no> luck"),
    ]


def test_markdown_has_tables_checks_notes_and_reasons(reports: list[Report]) -> None:
    text = page.markdown(reports)
    assert "|  | measured here | lecture | paper reported |" in text
    assert "| tok/s | 216.8 | 217.0 | 2.7x |" in text
    assert "| tok/s | 216.8 | 215 to 219 | BAND | passed |" in text
    assert "| blocks | 747 | 748 | EXACT | **FAILED** |" in text
    assert "`n` is **600**." in text
    assert "Pending: not built." in text
    assert "ValueError: <no> luck" in text
    assert "3 demos: 0 passed, 1 failed, 1 error, 1 pending; 1 of 2 checks passed" in text
    assert "1.5" not in text, "the page does not depend on how long it took"


class Tags(HTMLParser):
    """Fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name in ("src", "href") and str(value).startswith("http") for name, value in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_well_formed_and_says_the_same(reports: list[Report]) -> None:
    tags = Tags()
    tags.feed(page.html(reports))
    assert not tags.open
    text = "\n".join(tags.text)
    for words in ("A < B | C", "216.8", "paper reported", "215 to 219", "failed", "ValueError: <no> luck"):
        assert words in text


def test_html_draws_shares_as_bars() -> None:
    columns = [Column(""), Column("used %", Source.OURS), Column("free %", Source.OURS), Column("n")]
    table = Table("t", columns, [["a", 25.0, 75.0, 3]], stacked=2)
    demo = Demo("one", ("R1",), "One", never)
    text = page.html([Report(demo, Outcome([table], [Check.exact("n", 3, 3)]))])
    assert text.count("width:25.00%") == text.count("width:75.00%") == 1
    assert "width:3.00%" not in text and "used %</span>" in text


def test_json_keeps_numbers(reports: list[Report]) -> None:
    data = json.loads(json.dumps(page.as_dict(reports)))
    assert data["verdicts"] == {"passed": 0, "failed": 1, "error": 1, "quoted": 0, "pending": 1}
    first, second, third = data["demos"]
    assert first["tables"][0]["rows"] == [["tok/s", 216.8, 217, "2.7x"]]
    assert first["tables"][0]["columns"][1] == {"name": "measured here", "source": "measured here"}
    assert [check["passed"] for check in first["checks"]] == [True, False]
    assert (second["pending"], third["verdict"]) == ("not built", "error")
