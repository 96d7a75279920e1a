"""From model files to packed weights, in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from leafage.formats.model_file import open_model
from leafage.runtime import load
from leafage.runtime.load import load_model
from tests.models.tiny_models import Golden, write_folder


@pytest.mark.parametrize("quantize", [None, "q4"])
def test_batches_do_not_show(
    quantize: Literal["q4"] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = Golden("qwen2")
    path = write_folder(tmp_path / "qwen2", golden.config, golden.weights())
    loaded, progress = [], []
    for batch_bytes in (1, 20_000, 1 << 30):  # a matrix each, a few, all
        monkeypatch.setattr(load, "BATCH_BYTES", batch_bytes)
        seen: list[tuple[int, int]] = []
        with open_model(path) as model_file:
            model = load_model(
                model_file,
                quantize=quantize,
                num_threads=2,
                progress=lambda done, total, seen=seen: seen.append((done, total)),  # type: ignore[misc]
            )
        loaded.append(model)
        progress.append(seen)
    assert len(progress[0]) == len(loaded[0].weights) > len(progress[1]) > len(progress[2]) == 1
    assert all(seen[-1][0] == seen[-1][1] for seen in progress)
    for model in loaded:
        assert model.weights.keys() == loaded[0].weights.keys()
        for name, weight in model.weights.items():
            np.testing.assert_array_equal(weight.dequantize(), loaded[0].weights[name].dequantize())
