"""The guide of the simulator names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leafage.cli.sim import ANSWERS, COMMANDS
from leafage.sim.hardware import known_hardware
from leafage.sim.llm_spec import KNOWN_SPECS
from leafage.sim.summary import METRICS
from leafage.sim.workloads import WORKLOADS

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "simulator.md").read_text()


def test_every_metric_is_explained_in_its_own_words() -> None:
    for metric in METRICS.values():
        assert f"| `{metric.name}` | {metric.unit} | {metric.help} |" in GUIDE


def test_every_workload_model_and_command_is_named() -> None:
    for name, kind in WORKLOADS.items():
        assert f"| `{name}` | {kind.help} |" in GUIDE
    for name in (*KNOWN_SPECS, *(name for name in known_hardware() if "threads" not in name)):
        assert f"`{name}`" in GUIDE
    for command in COMMANDS:
        assert f"\n### {command}" in GUIDE


@pytest.mark.parametrize("page", ["docs/simulator.md", "README.md"])
def test_its_examples_are_understood(page: str) -> None:
    """Every `leafage sim` line parses, with flags and settings that there are."""
    from leafage.cli.app import make_app

    text = (ROOT / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?leafage (sim .*)$", text, re.MULTILINE)
    asked = [line.split("#")[0].replace("...", "").split() for line in lines]
    asked = [words for words in asked if words[1] in ANSWERS]
    assert len(asked) >= 4
    for words in asked:
        command, bound, *_ = make_app(words).parse_args(words, print_error=False, exit_on_error=False)
        assert command.__name__ == words[1] and bound.arguments


def test_its_program_runs() -> None:
    program = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
    small = program.replace('"num_requests": 300', '"num_requests": 8').replace("seeds=(0, 1)", "seeds=(0,)")
    assert small != program
    exec(compile(small, "docs/simulator.md", "exec"), {})
