"""One edge, block or request, looked at closely."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leafage.server.live import inspect
from leafage.server.live.inspect import HEAD_TOKENS, TAIL_TOKENS
from leafage.server.live.snapshot import snapshot
from tests.core.toy import Loop, numbers


def looked(loop: Loop, look: inspect.Look) -> dict[str, Any] | None:
    return look(SimpleNamespace(scheduler=loop.scheduler))  # type: ignore[arg-type]


def edges(loop: Loop) -> list[list[int]]:
    from leafage.engine.metrics import EngineMetrics

    class Clock:
        def now(self) -> float:
            return 0.0

    engine: Any = SimpleNamespace(scheduler=loop.scheduler)
    return snapshot(engine, EngineMetrics(Clock()))["tree"]["edges"]


def sharing(**options: Any) -> Loop:
    """Two requests that share 12 tokens and run."""
    loop = Loop(num_blocks=32, block_size=4, **options)
    for i in range(2):
        loop.add([*numbers(12), *numbers(5, 20 + 10 * i)], max_tokens=9)
    loop.step()
    loop.step()
    return loop


def test_an_edge_knows_its_tokens_blocks_and_holders() -> None:
    loop = sharing()
    trunk, first, _ = edges(loop)
    found = looked(loop, inspect.edge(trunk[0], trunk[1], trunk[3]))
    assert found is not None
    assert (found["start"], found["end"], found["holders"], found["pins"]) == (0, 12, [0, 1], 0)
    assert found["tokens"] == [numbers(12)]
    assert sum(count for _, count in found["blocks"]) == 3
    branch = looked(loop, inspect.edge(first[0], first[1], first[3]))
    assert branch is not None
    assert (branch["start"], branch["end"], branch["holders"]) == (12, 16, [0])
    assert branch["tokens"] == [numbers(4, 20)]


def test_an_edge_that_is_gone_is_not_taken_for_another() -> None:
    loop = sharing()
    trunk = edges(loop)[0]
    assert looked(loop, inspect.edge(trunk[0], trunk[1] + 1, 12)) is None
    assert looked(loop, inspect.edge(31, trunk[1], 12)) is None
    assert looked(loop, inspect.edge(99, trunk[1], 12)) is None


def test_a_block_knows_what_it_holds_for_whom() -> None:
    loop = sharing()
    table = loop.requests["r0"].sequences[0].block_table
    assert looked(loop, inspect.block(table[0])) == {
        "state": "shared",
        "blocks": [[table[0], 1]],
        "holders": [0, 1],
        "indexed": True,
        "start": 0,
        "end": 4,
        "tokens": [numbers(4)],
    }
    tail = looked(loop, inspect.block(table[-1]))
    assert tail is not None
    assert (tail["state"], tail["indexed"], tail["holders"], tail["start"]) == ("private", False, [0], 16)
    assert tail["tokens"][0][0] == 24
    free = looked(loop, inspect.block(31))
    assert free == {"state": "free", "blocks": [[31, 1]], "holders": [], "indexed": False}
    assert looked(loop, inspect.block(32)) is None


def test_blocks_of_reserved_memory() -> None:
    loop = sharing(reservation="max", max_model_len=40)
    assert [looked(loop, inspect.block(b))["state"] for b in (0, 9, 31)] == ["private", "reserved", "free"]  # type: ignore[index]


def test_a_request_knows_its_blocks_and_texts() -> None:
    loop = sharing()
    found = looked(loop, inspect.request(1))
    assert found is not None and found["id"] == "r1"
    assert found["tokens"] == [[*numbers(12), *numbers(5, 30)]]
    assert found["output"] == [loop.requests["r1"].sequences[0].tokens[17:]]
    table = loop.requests["r1"].sequences[0].block_table
    assert [first + i for first, count in found["blocks"] for i in range(count)] == table
    assert looked(loop, inspect.request(2)) is None


def test_long_texts_are_cut_in_the_middle() -> None:
    loop = Loop(num_blocks=256, block_size=4, vocab_size=1000)
    loop.add(numbers(400), max_tokens=1)
    loop.run()
    [edge] = edges(loop)
    found = looked(loop, inspect.edge(edge[0], edge[1], edge[3]))
    assert found is not None
    assert found["tokens"] == [numbers(HEAD_TOKENS), numbers(TAIL_TOKENS, 400 - TAIL_TOKENS)]
    assert found["blocks"] == [[0, 100]]
