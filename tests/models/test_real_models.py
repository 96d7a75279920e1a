"""compute="float32" on the real models against transformers in float32 on the same dequantized weights
(scripts/golden/real_models.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leafage.formats.model_file import open_model
from leafage.runtime.load import LoadedModel, load_model

from .paged import reference_sequence
from .tiny_models import GOLDEN

TOLERANCE = 1e-3
CHUNK = 256


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LoadedModel:
    return _load(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> LoadedModel:
    return _load(gemma3_path)


def _load(path: Path) -> LoadedModel:
    with open_model(path) as model_file:
        return load_model(model_file, compute="float32")


def check(model: LoadedModel, name: str, key: str) -> None:
    """Prompt and stored greedy tokens in chunks: logits agree, and every row that predicts one of the 256
    tokens prefers that token. A row's bits do not depend on the chunking (tests/kernels/test_reference.py),
    so this is the greedy answer."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        stored = {k.split("/")[1]: arrays[k] for k in arrays.files if k.startswith(f"{key}/")}
    prompt, greedy = stored["prompt"], stored["greedy"]
    tokens = [*prompt.tolist(), *greedy.tolist()]
    predicting = range(len(prompt) - 1, len(tokens) - 1)
    wanted = sorted({*predicting, *stored["rows"].tolist()})
    sequence = reference_sequence(model, len(tokens))
    worst = 0.0
    for start in range(0, len(tokens), CHUNK):
        rows = [row for row in wanted if start <= row < start + CHUNK]
        logits = sequence.extend(tokens[start : start + CHUNK], [row - start for row in rows])
        for row, values in zip(rows, logits, strict=True):
            if row in predicting:
                which = row - predicting.start
                assert int(values.argmax()) == greedy[which], f"token {which} of the answer"
                expected = stored["best_logits"][which]
                worst = max(worst, float(np.abs(values[stored["best_ids"][which]] - expected).max()))
            for sample in np.flatnonzero(stored["rows"] == row):
                expected = stored["sampled_logits"][sample]
                worst = max(worst, float(np.abs(values[stored["columns"]] - expected).max()))
    print(f"{name}, {key}: largest difference of logits {worst:.2g}")
    assert len(greedy) == 256 and worst <= TOLERANCE


@pytest.mark.real_model
@pytest.mark.parametrize("key", ["short", "long", "random", "chat"])
def test_smollm2_equals_transformers(smollm2: LoadedModel, key: str) -> None:
    check(smollm2, "real_smollm2", key)


@pytest.mark.real_model
@pytest.mark.parametrize("key", ["short", "long", "random"])
def test_gemma3_equals_transformers(gemma3: LoadedModel, key: str) -> None:
    check(gemma3, "real_gemma3", key)


@pytest.mark.real_model
def test_smollm2_answers_token_by_token(smollm2: LoadedModel) -> None:
    with np.load(GOLDEN / "real_smollm2.npz") as arrays:
        prompt, greedy = arrays["chat/prompt"].tolist(), arrays["chat/greedy"].tolist()
    assert reference_sequence(smollm2, 64).greedy(prompt, 32) == greedy[:32]
