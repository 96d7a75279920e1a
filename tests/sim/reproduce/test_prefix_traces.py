"""The lecture's workloads for a prefix cache."""

from __future__ import annotations

import pytest

from leafage.sim.reproduce.prefix_traces import best_hit_rate, conversations, few_shot


def test_few_shot_prompts_share_what_they_should_and_nothing_else() -> None:
    requests = few_shot(3)
    assert requests == few_shot(3) != few_shot(4)
    assert len(requests) == 400
    heads = {tuple(request.prompt[:600]) for request in requests}
    assert len(heads) == 8 and len({head[:100] for head in heads}) == 1
    own = [token for request in requests for token in [*request.prompt[600:], *request.output]]
    assert len(set(own)) == len(own) and not set(own) & {token for head in heads for token in head}
    lengths = [len(request.prompt) - 600 for request in requests]
    assert (min(lengths), max(lengths)) == (20, 99)


def test_the_best_hit_rate_computes_what_is_shared_once() -> None:
    first, second = few_shot(0, 2)
    assert first.prompt[:600] != second.prompt[:600], "two tasks"
    computed = 100 + 2 * 500 + len(first.prompt) + len(second.prompt) - 2 * 600
    both = len(first.prompt) + len(second.prompt)
    assert best_hit_rate([first, second]) == pytest.approx(1 - computed / both)


def test_conversations_are_the_lectures() -> None:
    chats = conversations(0, num_sessions=2, num_turns=2)
    first, other = chats
    assert (first.arrival, other.arrival) == (0, 0)
    assert list(first.prompt[:100]) == list(other.prompt[:100]) and first.prompt[100] != other.prompt[100]
    [second] = chats.finished(first, 7)
    said = [*first.prompt, *first.output]
    assert list(second.prompt[: len(said)]) == said and 20 <= len(second.prompt) - len(said) <= 99
    assert 12 <= second.arrival <= 47
    assert not list(chats.finished(second, 50))
