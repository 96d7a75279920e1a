from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.shared_prompts import FewShot, Retrieval, SharedPrompts
from leafage.sim.workload import SimRequest, TokenRuns
from tests.sim.runs import run


def heads(workload: SharedPrompts) -> list[tuple[range, ...]]:
    """What stands between instructions and question."""
    return [request.prompt.runs[1:-1] for request in workload if isinstance(request.prompt, TokenRuns)]


@pytest.mark.parametrize("make", [FewShot, Retrieval])
def test_the_same_settings_give_the_same_requests(make: type[SharedPrompts]) -> None:
    assert list(make(num_requests=40, seed=1)) == list(make(num_requests=40, seed=1))
    assert list(make(num_requests=40, seed=1)) != list(make(num_requests=40, seed=2))


@pytest.mark.parametrize("make", [FewShot, Retrieval])
def test_arrivals_are_sorted_and_drawn_apart(make: type[SharedPrompts]) -> None:
    made = list(make(num_requests=40, arrivals="poisson", rate=2.0))
    faster = list(make(num_requests=40, arrivals="poisson", rate=8.0))
    assert all(a.arrival <= b.arrival for a, b in pairwise(made))
    assert [(r.prompt, r.output) for r in made] == [(r.prompt, r.output) for r in faster]


def test_few_shot_prompts_share_instructions_and_the_examples_of_their_task() -> None:
    workload = FewShot()
    requests = list(workload)
    assert len(requests) == len(workload) == 400 and {r.arrival for r in requests} == {0.0}
    assert {tuple(islice(r.prompt, 100)) for r in requests} == {tuple(range(100))}
    tasks = Counter(heads(workload))
    assert len(tasks) == 8 and all(len(task) == 500 for (task,) in tasks) and min(tasks.values()) > 25
    own = [r.prompt[600:] for r in requests]
    assert all(20 <= len(question) <= 99 for question in own)
    assert len({token for question in own for token in question}) == sum(map(len, own))


def test_few_shot_computes_shared_tokens_once() -> None:
    """All prompts arrive at once: the hit rate is 1 - (instructions + tasks + questions) / prompts."""
    workload = FewShot(num_requests=60, system_tokens=112, task_tokens=512)  # whole blocks
    result, _ = run(workload)
    prompts = sum(len(r.prompt) for r in workload)
    questions = sum(len(r.prompt) - 624 for r in workload)
    assert result.counters.prefix_queries == prompts
    assert result.counters.prefix_hits == prompts - (112 + 8 * 512 + questions)


def test_popular_documents_are_retrieved_more_often() -> None:
    workload = Retrieval(num_requests=3000, num_documents=50, documents_per_request=2)
    found = Counter(document for head in heads(workload) for document in head)
    assert all(len(set(head)) == 2 for head in heads(workload))
    counts = [count for _, count in found.most_common()]
    assert found.most_common(1)[0][0].start == 100  # the first in the collection
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.4)
    alike = Counter(d for head in heads(Retrieval(num_requests=3000, num_documents=50, zipf=0)) for d in head)
    assert max(alike.values()) / min(alike.values()) < 1.6


def test_sorted_documents_make_more_prompts_begin_alike() -> None:
    def firsts(*, sorted_documents: bool) -> int:
        return len(
            {head[:2] for head in heads(Retrieval(sorted_documents=sorted_documents, num_documents=20))}
        )

    assert firsts(sorted_documents=True) < 0.7 * firsts(sorted_documents=False)


def test_all_documents_can_be_asked_for() -> None:
    every = heads(Retrieval(num_requests=2, num_documents=30, documents_per_request=30, zipf=10))
    assert all(len(set(head)) == 30 for head in every)
    assert heads(Retrieval(num_requests=2, documents_per_request=0)) == [(), ()]


def test_several_answers_or_beams() -> None:
    def first(**settings: int) -> SimRequest:
        return next(iter(FewShot(**settings)))

    assert first(n=3).n == 3 and first(beam_width=2).beam_width == 2


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (FewShot, {"num_tasks": 0}, "num_tasks is out of range"),
        (FewShot, {"task_tokens": -1}, "task_tokens is out of range"),
        (FewShot, {"system_tokens": -1}, "system_tokens is out of range"),
        (FewShot, {"rate": 2.0}, "have no rate"),
        (Retrieval, {"num_documents": 5, "documents_per_request": 6}, "got 6; limit: 0 to 5"),
        (Retrieval, {"zipf": -1.0}, "zipf is out of range"),
        (Retrieval, {"num_requests": 0}, "num_requests is out of range"),
    ],
)
def test_settings_out_of_range_are_refused(
    make: type[SharedPrompts], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        make(**settings)
