"""The tiny random model: the same bytes for a seed, and a model like any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

from leafage import LLM, SamplingParams
from leafage.tiny_model import CHARACTERS, write_tiny_model


def test_a_seed_gives_its_bytes(tmp_path: Path) -> None:
    def digest(name: str, seed: int) -> str:
        folder = write_tiny_model(tmp_path / name, seed)
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    assert digest("a", 0) == digest("b", 0) != digest("c", 1)
    assert digest("a", 0).startswith("6792fd07cde3f2a5"), "reports made elsewhere are of another model"


def test_it_is_a_model_like_any_other(tmp_path: Path) -> None:
    with LLM(str(write_tiny_model(tmp_path)), kv_cache_tokens=1024) as llm:
        text = "".join(CHARACTERS)
        assert llm.tokenizer.encode(text) == list(range(len(text)))
        assert llm.tokenizer.decode(list(range(len(text)))) == text
        assert llm.tokenizer.decode(llm.tokenizer.encode("pâté")) == "p??t??"
        params = SamplingParams(temperature=1.0, seed=1, max_tokens=40)
        one, other = llm.generate(["one prompt", "another one"], params)
        assert len(set(one.outputs[0].token_ids)) > 10, "its logits are neither flat nor a single peak"
        assert one.outputs[0].token_ids != other.outputs[0].token_ids
        assert llm.generate("one prompt", params)[0].outputs[0].token_ids == one.outputs[0].token_ids
