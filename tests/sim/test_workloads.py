from __future__ import annotations

from pathlib import Path

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.distributions import ALPACA_OUTPUT, Fixed
from leafage.sim.independent import Independent
from leafage.sim.trace_file import FORMATS, TraceFile
from leafage.sim.workloads import WORKLOADS, Setting, make_workload, workload_settings


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0.5,3,4\n1.5,5,6\n")
    return path


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_made_with_its_defaults(name: str) -> None:
    assert next(iter(make_workload(name))).arrival >= 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_settings_as_shown_are_accepted_and_change_nothing(name: str) -> None:
    shown = {s.name: s.default for s in workload_settings(name) if s.default is not None}
    assert {s.help for s in workload_settings(name)} and make_workload(name, **shown)
    assert len(shown) < len(workload_settings(name))


def test_settings_may_be_text() -> None:
    made = make_workload("alpaca", num_requests="7", rate="2.5", prompt_tokens="12", n="2")
    assert made == Independent(
        num_requests=7, rate=2.5, prompt_tokens=Fixed(12), output_tokens=ALPACA_OUTPUT, n=2
    )


def test_a_file_is_a_workload(csv: Path) -> None:
    made = make_workload(str(csv), rate_scale="2")
    assert isinstance(made, TraceFile) and [r.arrival for r in made] == [0.25, 0.75]
    assert Setting(
        "rate_scale", "1.0", "so many times as many requests a second as recorded"
    ) in workload_settings(csv)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_request": 3}, "no setting num_request; .* Did you mean num_requests?"),
        ({"rate_scale": 3}, "no setting rate_scale"),
        ({"num_requests": "many"}, "num_requests must be a whole number; got 'many'"),
        ({"num_requests": 2.5}, "num_requests must be a whole number; got 2.5"),
        ({"num_requests": True}, "num_requests must be a whole number"),
        ({"rate": None, "seed": None}, "seed must be a whole number"),
        ({"rate": "fast"}, "rate must be a number"),
    ],
)
def test_unknown_and_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        make_workload("sharegpt", **settings)


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(
        InvalidParameterError, match="unknown workload; got 'nowhere'; limit: sharegpt, alpaca"
    ):
        make_workload("nowhere")


def test_the_guide_names_every_workload_setting_and_format(csv: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    settings = {setting.name for name in (*WORKLOADS, csv) for setting in workload_settings(name)}
    for name in {*WORKLOADS, *FORMATS, *settings}:
        assert f"`{name}`" in guide, name


@pytest.mark.parametrize("path", ["nowhere.csv", "folder/nowhere"])
def test_a_path_without_a_file_is_called_one(path: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"there is no such trace file; got '{path}'"):
        make_workload(path)
