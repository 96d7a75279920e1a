"""What the tests hand to demos: the makers of the command line."""

from __future__ import annotations

from leafage.cli.sim_reproduce import make_tools
from leafage.sim.reproduce.demo import Outcome
from leafage.sim.reproduce.registry import DEMOS
from leafage.sim.reproduce.runner import run_demos


def run(demo_id: str) -> Outcome:
    """The outcome of a demo by its id."""
    [demo] = [demo for demo in DEMOS if demo.id == demo_id]
    [report] = run_demos([demo], make_tools())
    assert report.outcome is not None, report.error
    return report.outcome


def assert_passed(outcome: Outcome) -> None:
    assert outcome.checks, "a demo without checks proves nothing"
    failed = [check for check in outcome.checks if not check.passed]
    assert not failed, "\n".join(f"{c.text}: {c.value}, wanted {c.wanted}" for c in failed)
