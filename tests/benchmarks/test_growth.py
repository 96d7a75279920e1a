"""The decode step against the share of the context that is common."""

from __future__ import annotations

import growth
import pytest
from comparison import llama1b
from growth import Shape

SHAPES = (Shape("pairs", 4, 2, 80), Shape("all", 4, 4, 48))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("growth") / "small.gguf"
    llama1b.write(path, layers=2, hidden=256, ffn=512, vocabulary=2000)
    return str(path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CELL_SECONDS", 0.0)


def test_each_share_of_each_shape_is_measured(model: str) -> None:
    cells = growth.sharing(model, 2, SHAPES)["cells"]
    assert [(cell["name"], cell["common"]) for cell in cells] == [
        ("pairs", 0), ("pairs", 16), ("pairs", 32), ("pairs", 48), ("pairs", 64),
        ("all", 0), ("all", 0), ("all", 16), ("all", 32), ("all", 32),
    ]  # fmt: skip
    assert all(cell["seconds"] > 0 for cell in cells)


def test_tables_hold_common_blocks_and_tokens_that_differ_are_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[list[int]]] = []

    def steps(executor: object, tables: list[list[int]], *rest: float) -> tuple[float, list[object]]:
        seen.append([list(table) for table in tables])
        return 0.001, [len(seen)]

    monkeypatch.setattr(growth, "decode_steps", steps)
    with pytest.raises(SystemExit, match="pairs: other tokens when 1 of 4 blocks are common"):
        growth.sharing(model, 2, SHAPES[:1])
    alone, shared = seen
    assert len({block for table in alone for block in table}) == 4 * 5
    assert shared[0][0] == shared[1][0] != shared[2][0] == shared[3][0]
    assert [table[1:] for table in shared] == [table[1:] for table in alone]
