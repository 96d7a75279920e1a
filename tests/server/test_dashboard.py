"""docs/grafana-dashboard.json asks for what /metrics says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana-dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"instance", "le"}


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each metric, after the golden text and what the process tells of itself."""
    text = (Path(__file__).parent / "metrics.txt").read_text("utf-8")
    found = {"process_resident_memory_bytes": set[str]()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expr", expressions())
def test_every_metric_and_label_is_in_the_exposition(expr: str, labels: dict[str, set[str]]) -> None:
    names = re.findall(r"(?:leafage:|process_)\w+", expr)
    assert names, "asks for nothing of ours"
    for name in names:
        assert name in labels, f"{name} is not in /metrics"
    known = OF_PROMETHEUS.union(*(labels[name] for name in names))
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for label in group.split(",")}
    matched = set(re.findall(r"(\w+)=~?\"", expr))
    assert grouped | matched <= known
    if "le" in grouped:
        assert all(name.endswith("_bucket") for name in names)


@pytest.mark.parametrize("expr", expressions())
def test_counters_are_asked_for_their_rate(expr: str) -> None:
    for name in re.findall(r"leafage:\w+(?:_total|_bucket|_sum|_count)\b", expr):
        assert re.search(rf"(?:rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expr), name


def test_what_an_operator_looks_for_is_drawn() -> None:
    asked = " ".join(expressions())
    for name in (
        "request_success_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "kv_blocks",
        "prefix_cache_hits_total",
        "num_preemptions_by_kind_total",
        "last_step_age_seconds",
    ):
        assert f"leafage:{name}" in asked


def test_panels_have_their_own_place() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for one, other in itertools.combinations(DASHBOARD["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (
            f"{one['title']}, {other['title']}"
        )
        assert a["x"] + a["w"] <= 24


def test_variables_are_those_that_are_there(labels: dict[str, set[str]]) -> None:
    variables: dict[str, Any] = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(expressions()))) - {"__rate_interval"}
    assert used <= set(variables) == {"datasource", "model", "instance"}
    for name in re.findall(r"leafage:\w+", json.dumps(DASHBOARD["templating"])):
        assert name in labels
