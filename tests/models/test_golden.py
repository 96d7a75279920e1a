"""Tiny models with every variant of an architecture against logits that transformers gave in float32
(scripts/golden/tiny_models.py), over prompts longer than the window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafage import models
from leafage.formats.model_file import open_model
from leafage.models.tensors import Tensors
from leafage.runtime.load import LoadedModel, load_model
from tests.models.paged import reference_sequence
from tests.models.tiny_models import Golden, golden_names, write_folder, write_gguf

TOLERANCE = 2e-5
"""Of logits around 5, between two float32 implementations that add in another order."""

TINY = [name for name in golden_names() if not name.startswith("real_")]

GGUF_EXTRA: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_bias_tied": {},
    "llama_rope_llama3": {"rope.freq_base": 500_000.0},
    "llama_rope_linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "llama_rope_yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    },
    "mistral": {"attention.sliding_window": 20},
    "qwen2": {"rope.freq_base": 1_000_000.0},
    "qwen2_yarn_tied": {
        "rope.freq_base": 1_000_000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    },
    "qwen3": {"rope.freq_base": 1_000_000.0},
    "granite": {
        "attention.scale": 0.4,
        "embedding_scale": 0.6,
        "residual_scale": 0.22,
        "logit_scale": 1.5,
    },
    "smollm3": {"rope.freq_base": 5_000_000.0},
    "gemma3": {"rope.freq_base": 1_000_000.0, "attention.sliding_window": 20},
    "gemma3_scaled": {
        "rope.freq_base": 1_000_000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "attention.sliding_window": 20,
        "attention.sliding_window_pattern": [True, False, True],
        "attention.scale": 24**-0.5,
    },
    "gemma3_softcap": {
        "rope.freq_base": 1_000_000.0,
        "attention.sliding_window": 20,
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 1.5,
    },
}

FOLDERS_ONLY = {"qwen2_window", "qwen3_window", "smollm3_window"}
"""Variants that GGUF metadata cannot express."""


def load(path: Path) -> LoadedModel:
    with open_model(path) as model_file:
        return load_model(model_file, compute="float32")


def check(model: LoadedModel, golden: Golden) -> None:
    """Logits of all rows, in one step and in chunks, and the greedy tokens, one by one."""
    for chunks in ([], [1, 1, 1, 30, 17]):
        sequence = reference_sequence(model, len(golden.tokens))
        logits = sequence.extend_in(chunks, golden.tokens)
        np.testing.assert_allclose(logits, golden.logits, atol=TOLERANCE)
    sequence = reference_sequence(model, len(golden.tokens))
    prompt, answer = golden.tokens[: golden.prompt], golden.tokens[golden.prompt :]
    assert sequence.greedy(prompt, len(answer)) == answer


def test_every_variant_is_there() -> None:
    assert set(TINY) == set(GGUF_EXTRA) | FOLDERS_ONLY


@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize("name", TINY)
def test_folder_equals_transformers(name: str, dtype: str, tmp_path: Path) -> None:
    golden = Golden(name)
    check(load(write_folder(tmp_path / name, golden.config, golden.weights(), dtype)), golden)


@pytest.mark.parametrize("name", GGUF_EXTRA)
def test_gguf_equals_transformers(name: str, tmp_path: Path) -> None:
    golden = Golden(name)
    check(load(write_gguf(tmp_path / "model.gguf", golden, GGUF_EXTRA[name])), golden)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral", {"sliding_window": 0}),
        ("mistral", {"sliding_window": 21}),
        ("qwen2_window", {"layer_windows": (20,) * 3}),
        ("qwen2_window", {"layer_windows": (0, 20, 21)}),
        ("qwen3_window", {"layer_windows": (0,) * 3}),
        ("granite", {"attention_multiplier": 0.41}),
        ("granite", {"embedding_multiplier": 0.61}),
        ("granite", {"residual_multiplier": 0.23}),
        ("granite", {"logits_scaling": 1.51}),
        ("smollm3", {"has_rope": (True,) * 5}),
        ("smollm3_window", {"has_rope": (True, True, True)}),
        ("smollm3_window", {"layer_windows": (0, 0, 0)}),
        ("gemma3", {"layer_windows": (20,) * 7}),
        ("gemma3_scaled", {"attention_scale": 0.25}),
        ("gemma3_softcap", {"attention_softcap": 0.0}),
        ("gemma3_softcap", {"final_softcap": 0.0}),
    ],
)
def test_each_setting_shows_in_the_logits(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """The comparison above would see it if the setting were read and dropped."""
    golden = Golden(name)
    path = write_folder(tmp_path / name, golden.config, golden.weights())
    with open_model(path) as model_file:
        module = models.load(model_file)
        model = load_model(model_file, compute="float32")
        model.program = module.build(replace(model.config, **change), Tensors(model_file))
        logits = reference_sequence(model, len(golden.tokens)).extend(golden.tokens)
    assert np.abs(logits - golden.logits).max() > 100 * TOLERANCE


def test_rope_scalings_show_in_the_logits(tmp_path: Path) -> None:
    for name in ("llama_rope_llama3", "llama_rope_linear", "llama_rope_yarn", "qwen2_yarn_tied"):
        golden = Golden(name)
        rope = {"rope_theta": golden.config["rope_parameters"]["rope_theta"], "rope_type": "default"}
        config = {**golden.config, "rope_parameters": rope}
        model = load(write_folder(tmp_path / name, config, golden.weights()))
        logits = reference_sequence(model, len(golden.tokens)).extend(golden.tokens)
        assert np.abs(logits - golden.logits).max() > 100 * TOLERANCE


def test_config_files_of_transformers_4_mean_the_same(tmp_path: Path) -> None:
    llama3 = Golden("llama_rope_llama3").config
    parameters = dict(llama3.pop("rope_parameters"))
    old = {**llama3, "rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}
    assert models.llama.Config.from_hf(old) == models.llama.Config.from_hf(Golden("llama_rope_llama3").config)

    gemma = Golden("gemma3_scaled").config
    del gemma["rope_parameters"]
    old = {
        **gemma,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert models.gemma3.Config.from_hf(old) == models.gemma3.Config.from_hf(Golden("gemma3_scaled").config)


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model."])
def test_text_part_of_a_multimodal_folder(root: str, tmp_path: Path) -> None:
    golden = Golden("gemma3")
    weights = {root + name.removeprefix("model."): w for name, w in golden.weights().items()}
    weights["model.vision_tower.patch.weight" if root[0] == "m" else "vision_tower.patch.weight"] = np.ones(
        (2, 2), np.float32
    )
    config = {"model_type": "gemma3", "text_config": golden.config}
    check(load(write_folder(tmp_path / "both", config, weights)), golden)
