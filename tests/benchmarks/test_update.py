"""Rows that were measured again, in the report of a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compare
import pytest
from comparison.update import updated


def report(date: str, rows: dict[str, float], samples: dict[str, float], **others: Any) -> dict[str, Any]:
    return {
        "date": date,
        "machine": {"cpu": "a CPU", "threads": 2},
        "repetitions": 1,
        "versions": {"leafage": "0.1.0"},
        "load": {"before": 0.1, "after": 1.0},
        "rows": [
            {"group": title.split()[0], "title": title, "ours": [value]} for title, value in rows.items()
        ],
        "record": {
            "samples": [
                {"side": "ours", "workload": workload, "wall": wall} for workload, wall in samples.items()
            ],
            "errors": [],
            "floors": {workload: [wall] for workload, wall in samples.items()},
            "checks": {},
        },
        **others,
    }


def test_rows_and_what_they_were_made_of_are_replaced() -> None:
    whole = report("2026-01-01T10:00:00", {"W1": 1.0, "W3": 3.0, "best Q4_0": 0.5}, {"W1": 1.0, "W3": 3.0})
    whole["record"]["errors"] = [{"side": "theirs", "workload": "W1", "error": "failed"}]
    again = report("2026-01-01T11:00:00", {"W1": 1.5, "W2": 2.0, "best Q8_0": 0.6}, {"W1": 1.5, "W2": 2.0})
    again["record"]["samples"].append({"side": "theirs", "workload": "W1", "wall": 9.0})
    found = updated(whole, again)
    assert [(row["title"], row["ours"]) for row in found["rows"]] == [
        ("W1", [1.5]),
        ("W3", [3.0]),
        ("best Q8_0", [0.6]),
        ("W2", [2.0]),
    ]
    walls = {(s["side"], s["workload"]): s["wall"] for s in found["record"]["samples"]}
    assert walls == {("ours", "W3"): 3.0, ("ours", "W1"): 1.5, ("ours", "W2"): 2.0, ("theirs", "W1"): 9.0}
    assert found["record"]["errors"] == [] and found["record"]["floors"]["W1"] == [1.5]
    assert found["date"] == whole["date"]
    assert found["again"] == [
        {"date": "2026-01-01T11:00:00", "load": again["load"], "groups": ["W1", "W2", "best"]}
    ]
    third = updated(found, report("2026-01-01T12:00:00", {"W2": 2.5}, {"W2": 2.5}))
    assert [entry["groups"] for entry in third["again"]] == [["W1", "best"], ["W2"]]
    fourth = updated(third, report("2026-01-01T13:00:00", {"W2": 2.4}, {"W2": 2.4}))
    assert [entry["date"][11:13] for entry in fourth["again"]] == ["11", "13"], "nothing is left of the third"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": {"cpu": "another"}}, "machine"),
        ({"versions": {"leafage": "0.2.0"}}, "versions: .*0.1.0.* in the report"),
    ],
)
def test_other_machines_and_versions_are_refused(change: dict[str, Any], message: str) -> None:
    whole = report("2026-01-01T10:00:00", {"W1": 1.0}, {})
    with pytest.raises(ValueError, match=message):
        updated(whole, report("2026-01-01T11:00:00", {"W1": 1.0}, {}, **change))


@pytest.mark.parametrize("text", [None, "no JSON", "[]", "{}"])
def test_what_is_no_report_is_refused_before_anything_is_measured(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "out.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=r"--update takes a file that --json wrote; .*out.json"):
        compare._earlier(file)
