"""Tokenizers from Hugging Face folders, made here with the `tokenizers` library, which is also the oracle."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from leafage.errors import ModelFileError, UnsupportedError
from leafage.text.byte_level import BYTE_OF_CHAR
from leafage.text.chat_template import ChatTemplate, encode_chat
from leafage.text.tokenizer import Tokenizer

TEXTS = ["hello", " two  spaces", "삼겹살 😊", "<s> and </s>", "a<think>b", "", "\n\n", "<|eot|>"]


def byte_level_engine(normalized: bool = False) -> Engine:
    alphabet = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__)
    vocabulary = {token: i for i, token in enumerate([*alphabet, "he", "ll", "hell", "hello"])}
    engine = Engine(models.BPE(vocabulary, [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(t, normalized=normalized) for t in ("<s>", "</s>", "<|eot|>")])
    engine.add_tokens([AddedToken("<think>", normalized=False)])
    engine.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 260)])
    return engine


def sentencepiece_engine(first: str) -> Engine:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"helo", "▁h", "ll", "▁he"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    engine = Engine(
        models.BPE(
            vocabulary,
            [("▁", "h"), ("l", "l"), ("▁h", "e")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    steps = [normalizers.Prepend("▁")] if first == "prepend" else []
    engine.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if first == "prepend" else []
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    return engine


def save(folder: Path, engine: Engine, **files: Any) -> Path:
    engine.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}"}


def oracle(engine: Engine, text: str, parse_special: bool) -> list[int]:
    engine.encode_special_tokens = not parse_special
    ids: list[int] = engine.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("kind", ["byte_level", "prepend", "plain"])
def test_ids_and_text_are_those_of_the_library(tmp_path: Path, kind: str) -> None:
    engine = byte_level_engine() if kind == "byte_level" else sentencepiece_engine(kind)
    tokenizer = Tokenizer.from_hf(save(tmp_path, engine, tokenizer_config=CONFIG))
    for text in TEXTS:
        for parse in (False, True):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse)
            assert ids == oracle(engine, text, parse)
            assert tokenizer.decode(ids) == engine.decode(ids, skip_special_tokens=True)
        plain = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(plain) == text
        stream = tokenizer.detokenizer(continues=False)
        assert stream.push_all(plain) + stream.flush() == text


def test_what_the_files_declare(tmp_path: Path) -> None:
    folder = save(
        tmp_path, byte_level_engine(), tokenizer_config=CONFIG, generation_config={"eos_token_id": [7, 261]}
    )
    tokenizer = Tokenizer.from_hf(folder)
    assert tokenizer.vocab_size == 264
    assert (tokenizer.bos_id, tokenizer.eos_id) == (260, 261)
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.add_bos) == ([260], [], True)
    assert tokenizer.eos_ids == {7, 261, 262}  # the list, </s>, and <|eot|> by its name
    assert tokenizer.special_ids == {260, 261, 262}
    assert tokenizer.chat_template == CONFIG["chat_template"]
    assert tokenizer.encode("hello") == [260, 259]
    assert tokenizer.encode("<s>hello", parse_special=True) == [260, 259], "never two BOS"


@pytest.mark.parametrize(
    ("config", "prefix", "suffix"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False, "add_eos_token": True}, [], [261]),
        ({"tokenizer_class": "GemmaTokenizer"}, [260], []),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}, [260], []),
    ],
)
def test_bos_and_eos_as_transformers_adds_them(
    tmp_path: Path, config: dict[str, Any], prefix: list[int], suffix: list[int]
) -> None:
    folder = save(tmp_path, byte_level_engine(), tokenizer_config={**CONFIG, **config})
    assert Tokenizer.from_hf(folder).encode("hello") == [*prefix, 259, *suffix]


def test_a_post_processor_may_write_more_than_bos(tmp_path: Path) -> None:
    engine = byte_level_engine()
    engine.post_processor = processors.TemplateProcessing(
        "<think> <s> $A </s>", special_tokens=[("<think>", 263), ("<s>", 260), ("</s>", 261)]
    )
    tokenizer = Tokenizer.from_hf(save(tmp_path, engine, tokenizer_config=CONFIG))
    assert tokenizer.encode("hello") == [263, 260, 259, 261]
    assert tokenizer.encode("") == [263, 260, 261]


def test_ids_come_from_config_json_where_the_tokenizer_is_silent(tmp_path: Path) -> None:
    folder = save(tmp_path, byte_level_engine(), config={"bos_token_id": 260, "eos_token_id": [261, 262]})
    assert Tokenizer.from_hf(folder).eos_ids == {261, 262}


def test_the_template_may_stand_in_its_own_file_or_be_one_of_several(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder = save(tmp_path, byte_level_engine(), tokenizer_config={"chat_template": named})
    assert Tokenizer.from_hf(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("own", encoding="utf-8")
    assert Tokenizer.from_hf(folder).chat_template == "own"


@pytest.mark.parametrize("normalized", [False, True])
def test_t01_special_tokens_in_user_text_stay_text(tmp_path: Path, normalized: bool) -> None:
    tokenizer = Tokenizer.from_hf(save(tmp_path, byte_level_engine(normalized), tokenizer_config=CONFIG))
    chat = ChatTemplate.of(tokenizer, "<s>{{ messages[0].content }}<|eot|>")
    ids = encode_chat(tokenizer, chat, [{"role": "user", "content": "<s>hello</s><|eot|>"}])
    assert ids == [260, *b"<s>", 259, *b"</s><|eot|>", 262]


def test_threads_do_not_mix_up_the_switch_for_special_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_hf(save(tmp_path, byte_level_engine(), tokenizer_config=CONFIG))

    def encode(i: int) -> bool:
        return tokenizer.encode("<s>hello</s>" * 20, parse_special=i % 2 == 0).count(261) == (
            20 if i % 2 == 0 else 0
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encode, range(400)))


def test_broken_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_hf(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelFileError, match="does not parse"):
        Tokenizer.from_hf(tmp_path)
    save(tmp_path, byte_level_engine())
    (tmp_path / "generation_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"generation_config\.json"):
        Tokenizer.from_hf(tmp_path)


def test_decoders_not_made_for_generation_are_refused_by_name(tmp_path: Path) -> None:
    engine = byte_level_engine()
    engine.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer.from_hf(save(tmp_path, engine))
