from __future__ import annotations

import re
import sys
from html import escape
from xml.etree import ElementTree

import pytest

from leafage.errors import UnsupportedError
from leafage.sim.experiments import compare, simulate, sweep
from leafage.sim.goodput import goodput
from leafage.sim.report import compare_page, describe, figures, goodput_page, run_page, sweep_page
from leafage.sim.report.page import Page
from leafage.sim.result import SLO
from leafage.sim.summary import METRICS
from tests.sim.scenarios import small_scenario

SHORT = SLO(ttft=0.05, tpot=0.01)


def checked(page: str, *, plots: int) -> str:
    """A page stands alone, and its plots are well-formed."""
    assert page.startswith("<!doctype html>") and 'name="viewport"' in page
    assert "<script" not in page and "<link" not in page and "src=" not in page
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)
    drawn = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(drawn) == plots
    for svg in drawn:
        ElementTree.fromstring(svg)
    return page


def test_the_page_of_a_run() -> None:
    scenario = small_scenario("few-shot", rate=200, arrivals="poisson", config={"prefix_index": "radix"})
    run = simulate(scenario, SHORT)
    page = checked(run_page(scenario, run, SHORT), plots=5)
    assert METRICS["throughput"].show(run.metrics["throughput"]) in page
    for metric in METRICS.values():
        if not metric.name.startswith(("ttft", "tpot", "e2e")):
            assert escape(metric.help) in page
    assert figures.memory_over_time(run) in page, "the same bytes every time"


def test_the_page_of_a_sweep_draws_numbers_as_lines_and_names_as_bars() -> None:
    metrics = [METRICS["throughput"], METRICS["ttft_p90"]]
    scenario = small_scenario()
    points = sweep(scenario, {"rate": [5, 50], "kv": ["paged", "reserved-max"]}, seeds=(0, 1))
    page = checked(sweep_page(scenario, points, metrics, SHORT), plots=2)
    assert "Against rate and kv" in page and page.count("<tr>") == 5
    names = sweep(scenario, {"policy": ["fcfs", "first_fit"]})
    checked(sweep_page(scenario, names, metrics, SHORT), plots=2)


def test_the_page_of_a_comparison_tells_errors_and_refusals() -> None:
    scenario = small_scenario(rate=100, config={"kv_cache_tokens": None, "max_model_len": 64})
    points = compare(scenario, [{"kv": "paged"}, {"kv": "reserved-max"}, {"model": "llama-3-70b"}])
    page = checked(compare_page(scenario, points, SHORT), plots=10)
    assert "llama-3-70b does not fit" in page
    assert re.search(r"\d+ requests were refused", page)


def test_the_page_of_a_search() -> None:
    config = {"kv_cache_tokens": 512, "max_model_len": 512}
    scenario = small_scenario(rate=60, num_requests=30, config=config)
    found = goodput(scenario, [{"kv": "paged"}, {"kv": "reserved-max"}], slo=SHORT, seeds=(0,), tolerance=1)
    page = checked(goodput_page(scenario, found, SHORT, 0.9), plots=6)
    assert f"{found[1].rate.median:.3g} req/s" in page
    checked(goodput_page(scenario, found[:1], SLO(9, 9), 0.9), plots=5)


def test_text_is_escaped() -> None:
    page = Page("<i>title", "<i>subtitle", [("<i>1", "<i>what")], ["<i>note"], "<i>settings")
    page.table("<i>table", ["<i>column"], [[("<i>cell", True)]])
    page.text("<i>text")
    page.figures("<i>figures", [("<i>caption", "<i>help", "<svg></svg>")])
    assert "<i>" not in page.html() and page.html().count("&lt;i&gt;") == 14, "all texts, the title twice"


def test_a_scenario_in_a_line() -> None:
    scenario = small_scenario(rate=2.5).with_setting("replicas", 3)
    assert describe(scenario) == "smollm2-135m on 3 x l4, alpaca (num_requests=30, rate=2.5)"


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small_scenario()
    run = simulate(scenario)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        run_page(scenario, run, SHORT)
