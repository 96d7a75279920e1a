"""Promise 1 beyond the defaults: every instruction set, long contexts, sliding windows, float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leafage import SamplingParams
from leafage.build import Assets, load_assets
from leafage.config import EngineConfig
from leafage.kernels import _native
from tests.promises import Witness, engine, mixed_params, random_prompts, salted, tokens_of

pytestmark = pytest.mark.real_model

SMALL = {"max_num_batched_tokens": 8, "max_num_seqs": 8, "threads": 1, "block_size": 32}
ALL_ROWS = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, ignore_eos=True)


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.variant()
    _native.set_variant(request.param)
    yield request.param
    _native.set_variant(before)


def check_small(assets: Assets, longest: int = 23, **settings: Any) -> None:
    """Alone, together, and together with small chunks, one thread and larger blocks."""
    prompts, params = random_prompts(4, 3, longest + 1, seed=20), mixed_params(4, 4)
    witness = Witness()
    with engine(assets, kv_cache_tokens=2048, **settings) as llm:
        witness.watch(llm)
        alone = [
            tokens_of(llm.generate(salted([prompt], f"{i}"), own))[0]
            for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]
        assert tokens_of(llm.generate(salted(prompts, "together"), params)) == alone
    with engine(assets, kv_cache_tokens=2048, **SMALL, **settings) as llm:
        witness.watch(llm)
        assert tokens_of(llm.generate(salted(prompts, "small"), params)) == alone
    witness.check(at_least=2 * 4 * 4)


@pytest.mark.parametrize("variant", _native.variants(), indirect=True)
def test_every_instruction_set_keeps_the_promise(smollm2_path: Path, variant: str) -> None:
    longest = 11 if variant == "plain" else 23  # plain C++ takes 60 times as long
    check_small(load_assets(EngineConfig(model=str(smollm2_path))), longest)


def test_float32_keeps_the_promise(smollm2_path: Path) -> None:
    """The reference runs whole matrices through NumPy, whose sums depend on the shape: tokens, not bits."""
    assets = load_assets(EngineConfig(model=str(smollm2_path), compute="float32"))
    prompts = random_prompts(2, 3, 8, seed=21)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with engine(assets, kv_cache_tokens=512) as llm:
        alone = [tokens_of(llm.generate(salted([p], f"{i}"), params))[0] for i, p in enumerate(prompts)]
        assert tokens_of(llm.generate(salted(prompts, "together"), params)) == alone


def check_every_row(
    path: Path, length: int, settings: list[dict[str, Any]], common: dict[str, Any] | None = None
) -> None:
    """All logits of a long prompt, at every position, computed in different chunks."""
    assets = load_assets(EngineConfig(model=str(path)))
    [prompt] = random_prompts(1, length, length + 1, seed=22)
    prompt[0] = assets.tokenizer.bos_id or prompt[0]
    witness = Witness()
    answers = []
    for own in [{}, *settings]:
        with engine(assets, kv_cache_tokens=length + 100, **own, **(common or {})) as llm:
            witness.watch(llm)
            answers.append(tokens_of(llm.generate([prompt], ALL_ROWS))[0])
    assert all(answer == answers[0] for answer in answers)
    witness.check(at_least=len(settings) * length)


def test_every_row_of_a_long_context(smollm2_path: Path) -> None:
    """Across every boundary of tiles, blocks and partitions of the attention."""
    check_every_row(
        smollm2_path, 700, [{"max_num_batched_tokens": 300}, {**SMALL, "max_num_batched_tokens": 45}]
    )


def test_every_row_behind_a_sliding_window(gemma3_path: Path) -> None:
    """Gemma's local layers see 512 tokens; later rows look through the window's edge."""
    check_every_row(gemma3_path, 560, [{**SMALL, "max_num_batched_tokens": 75}])


def test_gemma_keeps_the_promise(gemma3_path: Path) -> None:
    assets = load_assets(EngineConfig(model=str(gemma3_path)))
    check_small(assets)
    check_small(assets, kv_cache_dtype="int8")


def test_int8_keys_and_values_keep_the_promise(smollm2_path: Path) -> None:
    check_small(load_assets(EngineConfig(model=str(smollm2_path))), kv_cache_dtype="int8")


def test_every_row_of_a_long_context_in_int8(smollm2_path: Path) -> None:
    int8 = {"kv_cache_dtype": "int8"}
    check_every_row(
        smollm2_path,
        540,
        [
            {"max_num_batched_tokens": 300},
            {**SMALL, "max_num_batched_tokens": 45},
            {**SMALL, "block_size": 8},
        ],
        int8,
    )
