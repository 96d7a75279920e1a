"""Code 05, demo 1: the tree, request by request, on the tiny model; on SmolLM2 in the soak."""

from __future__ import annotations

import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.core.radix_tree import RadixTree
from leafage.sim.reproduce import code_05_tree
from leafage.sim.reproduce.code_05_tree import Run, runs_of, serve
from tests.sim.reproduce.tools import assert_passed, run


def test_r7_4_requests_compute_their_own_part_only() -> None:
    served, runs, tokenizer = serve(make_tools(), "tiny")
    r1, r4 = served[0], served[3]
    shared = len("You are a helpful assistant. Answer in one short sentence.\nQ: ")
    assert [request.answered.num_cached for request in served[:3]] == [0, shared, len(r1.tokens) - 1]
    assert r4.answered.num_cached == len(r1.tokens) + len("\nQ: ")
    assert all(request.answered.token_ids[0] == request.from_scratch for request in served)
    assert [run.depth for run in runs] == [0, 1, 1, 2, 2]
    assert tokenizer.decode(runs[0].tokens).endswith("Q: ")
    assert tokenizer.decode(runs[1].tokens).startswith(code_05_tree.QUESTIONS[1][3:])


def test_runs_end_where_the_tree_branches() -> None:
    tree = RadixTree(2)
    node = tree.insert(tree.root(""), (1, 2), 0)
    node = tree.insert(node, (3, 4), 1)
    tree.insert(node, (7, 8), 2)
    tree.insert(tree.insert(node, (5, 6), 3), (9,), 4)
    assert runs_of(tree.nodes()) == [Run(0, [1, 2, 3, 4]), Run(1, [5, 6, 9]), Run(1, [7, 8])]


@pytest.mark.real_model
@pytest.mark.soak
def test_all_verdicts() -> None:
    assert_passed(run("code05-1"))
