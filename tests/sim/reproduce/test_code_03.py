"""Code 03 on the tiny model; on SmolLM2 in the soak."""

from __future__ import annotations

import numpy as np
import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.sim.reproduce import code_03
from leafage.sim.reproduce.engine_runs import Runner
from tests.core.naive_beam import naive_beam_search as oracle
from tests.sim.reproduce.tools import assert_passed, run


@pytest.fixture(scope="module")
def samples() -> Runner:
    return Runner(make_tools(), "tiny", block_size=8, prefix_index="none")


@pytest.mark.parametrize(("n", "separate", "shared"), [(2, 26, 19), (4, 52, 31), (8, 104, 55)])
def test_r4_2_blocks_copies_and_answers(samples: Runner, n: int, separate: int, shared: int) -> None:
    prompt = samples.prompt(62)
    result = code_03.sample(samples, prompt, n)
    assert (result.blocks, result.copies) == (shared, n - 1)
    assert code_03.apart(samples, prompt, n) == separate
    assert result.answers == [code_03.alone(samples, prompt, i) for i in range(n)]
    assert len(set(map(tuple, result.answers))) == n, "different seeds, different answers"


def test_p4_a_prompt_that_fills_its_last_block_is_not_copied(samples: Runner) -> None:
    assert code_03.sample(samples, samples.prompt(64), 4).copies == 0


@pytest.mark.parametrize(("n", "saved"), [(2, "30.4"), (4, "45.6"), (8, "53.2")])
def test_e2_the_formula(n: int, saved: str) -> None:
    assert f"{100 * code_03.formula(n):.1f}" == saved


@pytest.mark.parametrize(("width", "low"), [(2, 0.40), (4, 0.65), (8, 0.775)])
def test_r4_3_beams_share_and_equal_the_naive_search(width: int, low: float) -> None:
    runner = Runner(make_tools(), "tiny", block_size=4, prefix_index="none")
    prompt = runner.prompt(40)
    answers, blocks = code_03.beam_search(runner, prompt, width)
    assert len(blocks.held) == 29, "one step computes the prompt, the others all beams"
    assert low <= blocks.mean_saving <= (width - 1) / width
    tops = code_03.tops_of(runner, width)
    assert answers == code_03.naive_beam_search(tops, prompt, width, 30)
    assert len(set(map(tuple, answers))) == width


def test_the_naive_search_is_the_one_that_beams_are_tested_with() -> None:
    rng = np.random.default_rng(0)
    table = np.log(rng.dirichlet(np.ones(12), size=12)).astype(np.float32)

    def tops(sequences: list[list[int]]) -> list[list[tuple[int, float]]]:
        rows = [table[tokens[-1]] for tokens in sequences]
        return [[(int(i), float(row[i])) for i in np.argsort(-row)[:3]] for row in rows]

    expected = oracle(lambda tokens: table[tokens[-1]], [5], width=3, max_tokens=9)
    assert code_03.naive_beam_search(tops, [5], 3, 9) == [answer.tokens for answer in expected]


def test_r4_6_ways_of_decoding_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_03, "MODELS", {"tiny": "tiny random model"})
    outcome = code_03.demo_mixed(make_tools())
    assert_passed(outcome)
    assert [row[2] for row in outcome.tables[0].rows] == [1, 3, 4, 1]


@pytest.mark.real_model
@pytest.mark.soak
@pytest.mark.parametrize("demo", ["code03-1", "code03-2", "mixed"])
def test_all_verdicts(demo: str) -> None:
    assert_passed(run(demo))
