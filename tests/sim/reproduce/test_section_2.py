"""Section 2: the analogy names what exists."""

from __future__ import annotations

import pytest

from leafage.sim.reproduce.section_2 import exists
from tests.sim.reproduce.tools import assert_passed, run


def test_r2_1_every_name_of_the_table_is_in_the_core() -> None:
    assert_passed(run("analogy"))


@pytest.mark.parametrize("name", ["request.Sequence.page_table", "request.Process"])
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    assert not exists(name)
