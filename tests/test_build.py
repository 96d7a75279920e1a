from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from leafage import build
from leafage.build import Assets, PlainKernelsWarning, assemble, build_engine, load_assets
from leafage.config import EngineConfig
from leafage.errors import InvalidParameterError, ModelFileError, ModelNotFoundError, TemplateError
from leafage.kernels import _native
from leafage.runtime import load
from tests.models.tiny_models import Golden, write_folder

MIB = 1 << 20
KV = 1024  # bytes per token in the plans below


class FakeFile:
    path = Path("m.gguf")

    def __init__(self, generation_config: dict[str, Any] | None) -> None:
        self.generation_config = generation_config


def defaults(recommended: dict[str, Any] | None) -> Any:
    return build._default_sampling_params(FakeFile(recommended))  # type: ignore[arg-type]


def test_generation_config_gives_the_defaults() -> None:
    params = defaults(
        {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2], "do_sample": True, "top_k": None}
    )
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 0)
    assert defaults(None).temperature == 1.0


def test_a_broken_generation_config_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"generation_config of m\.gguf: temperature"):
        defaults({"temperature": -1})


def test_unknown_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        build_engine(EngineConfig(model=str(tmp_path / "none.gguf")))


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("swap_path", "swap_path cannot be made: No such file or directory"),
        ("hardware", "unknown hardware"),
        ("chat_template", "the chat template file cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_the_model_is_loaded(
    tmp_path: Path, setting: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "load_assets", lambda *_, **__: pytest.fail("the model was loaded first"))
    config = EngineConfig.from_kwargs(**{setting: str(tmp_path / "none" / "file")})
    with pytest.raises((InvalidParameterError, TemplateError), match=error):
        build_engine(config)


def test_a_tokenizer_that_cannot_be_made_ends_the_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made beside the weights, and its error does not wait for the last of them."""
    golden = Golden("llama")
    path = write_folder(tmp_path / "llama", golden.config, golden.weights())  # without a tokenizer.json
    monkeypatch.setattr(load, "BATCH_BYTES", 1)
    seen: list[int] = []

    def slowly(done: int, total: int) -> None:
        seen.append(done)
        time.sleep(0.2)

    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_assets(EngineConfig(model=str(path)), on_progress=slowly)
    assert len(seen) < 5 < len(golden.shapes)


@pytest.mark.real_model
def test_the_real_model_is_described(assets: Assets, smollm2_path: Path) -> None:
    config = EngineConfig(model=str(smollm2_path), kv_cache_tokens=2048, threads=1)
    b = assemble(config, assets)
    assert (b.model.architecture, b.model.format) == ("llama", "gguf")
    assert (b.model.vocab_size, b.model.context_length) == (49152, 8192)
    assert b.plan.weight_bytes <= 1.06 * b.model.file_bytes
    assert b.plan.kv_bytes == 2048 * 30 * 2 * 3 * 64 * 2  # layers, K and V, KV heads, head_dim, bf16
    assert b.threads == 1 and b.kernels == _native.variant()
    in_int8 = assemble(EngineConfig(kv_cache_tokens=2048, kv_cache_dtype="int8"), assets)
    assert in_int8.plan.kv_bytes == 2048 * 30 * 2 * 3 * (64 + 4)  # a float per token and head
    assert in_int8.engine.executor.program.kv.num_bytes == in_int8.plan.kv_bytes


@pytest.mark.real_model
def test_c03_plain_kernels_warn_at_start(assets: Assets) -> None:
    config = EngineConfig(kv_cache_tokens=256)
    before = _native.variant()
    try:
        _native.set_variant("plain")
        with pytest.warns(PlainKernelsWarning, match="AVX2 or AVX-512 VNNI"):
            assert assemble(config, assets).kernels == "plain"
        _native.set_variant(_native.variants()[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assemble(config, assets)
    finally:
        _native.set_variant(before)


@pytest.mark.real_model
def test_chat_templates_by_file(assets: Assets, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    b = assemble(EngineConfig(kv_cache_tokens=256, chat_template=str(file)), assets)
    ids = b.encode_chat([{"role": "user", "content": "hi"}])
    assert assets.tokenizer.decode(ids) == "hi!"
    file.write_text("{% for m in messages %}")
    with pytest.raises(TemplateError, match="does not parse"):
        assemble(EngineConfig(kv_cache_tokens=256, chat_template=str(file)), assets)
    with pytest.raises(TemplateError, match="cannot be read"):
        assemble(EngineConfig(kv_cache_tokens=256, chat_template=str(tmp_path / "none")), assets)


@pytest.mark.real_model
def test_a_base_model_refuses_to_chat(gemma3_path: Path) -> None:
    b = build_engine(EngineConfig(model=str(gemma3_path), kv_cache_tokens=256))
    with pytest.raises(TemplateError, match="--chat-template FILE"):
        b.encode_chat([{"role": "user", "content": "hi"}])
    assert b.inputs.request("r", "Hello", b.default_sampling_params).prompt_token_ids[0] == b.tokenizer.bos_id
