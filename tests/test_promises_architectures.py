"""Promise 1 on every architecture, through the whole engine: tiny models with 4-bit weights, so that every
kernel of the real path runs, and none needs a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leafage.build import Assets, ModelInfo
from leafage.core.sampling_params import SamplingParams
from leafage.formats.model_file import open_model
from leafage.runtime.load import load_model
from leafage.text.byte_level import BYTE_OF_CHAR
from leafage.text.tokenizer import Tokenizer
from tests.models.tiny_models import Golden, golden_names, write_folder
from tests.promises import Witness, engine, mixed_params, salted, tokens_of

TINY = [name for name in golden_names() if not name.startswith("real_")]
COUNT, MAX_TOKENS = 5, 6
SMALL = {"max_num_batched_tokens": 8, "max_num_seqs": 8, "threads": 1, "block_size": 32}


def tiny_assets(name: str, tmp_path: Path) -> Assets:
    golden = Golden(name)
    path = write_folder(tmp_path / name, golden.config, golden.weights())
    with open_model(path) as model_file:
        model = load_model(model_file, quantize="q4", num_threads=2)
        num_bytes = model_file.num_bytes
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(BYTE_OF_CHAR)[:80],
        "tokenizer.ggml.merges": [],
    }
    info = ModelInfo(name, path, golden.architecture, "hf", num_bytes, 80, model.config.max_position)
    return Assets(model, Tokenizer.from_gguf(metadata), info, SamplingParams())


@pytest.mark.parametrize("name", TINY)
def test_every_architecture_keeps_the_promise(name: str, tmp_path: Path) -> None:
    """Alone, together with cold and warm caches, and together in small chunks, one thread, larger blocks."""
    rng = np.random.default_rng(7)
    start = rng.integers(3, 80, 20).tolist()  # shared by some, longer than a block
    prompts = [
        (start if i % 2 else []) + rng.integers(3, 80, int(rng.integers(2, 40))).tolist()
        for i in range(COUNT)
    ]
    params = mixed_params(COUNT, MAX_TOKENS)
    assets = tiny_assets(name, tmp_path)
    witness = Witness()
    with engine(assets, kv_cache_tokens=2048) as llm:
        witness.watch(llm)
        alone = [
            tokens_of(llm.generate(salted([prompt], f"{i}"), own))[0]
            for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]
        assert tokens_of(llm.generate(salted(prompts, "together"), params)) == alone
        assert tokens_of(llm.generate(salted(prompts, "together"), params)) == alone
    with engine(assets, kv_cache_tokens=2048, **SMALL) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(salted(prompts, "small"), params)) == alone
    witness.check(at_least=3 * COUNT * MAX_TOKENS)
