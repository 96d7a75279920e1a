"""Tokenizers from GGUF metadata against llama.cpp, and what they refuse."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from leafage.errors import ModelFileError, UnsupportedError
from leafage.text.gguf_tokenizer import MissingPreTokenizerWarning
from leafage.text.tokenizer import Tokenizer
from tests.text.vocabularies import family_metadata, family_names, golden, without_double

FLAGS = [(add, parse) for add in (False, True) for parse in (False, True)]


def check_against_llama_cpp(
    tokenizer: Tokenizer, texts: list[str], rows: list[list[list[int]] | None]
) -> int:
    """Compare every comparable text under the four settings; the number compared."""
    compared = 0
    for text, row in zip(texts, rows, strict=True):
        for (add, parse), ids in zip(FLAGS, row or [], strict=False):
            expected = without_double(
                ids,
                tokenizer.bos_id if add and tokenizer.add_bos else None,
                tokenizer.eos_id if add and tokenizer.suffix else None,
            )
            assert tokenizer.encode(text, add_special=add, parse_special=parse) == expected, (
                text,
                add,
                parse,
            )
            compared += 1
    return compared


@pytest.mark.parametrize("name", family_names())
def test_family_gives_llama_cpp_ids(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(family_metadata(name))
    rows = golden("families")["families"][name]["ids"]
    assert check_against_llama_cpp(tokenizer, golden("families")["texts"], rows) > 300


@pytest.mark.parametrize("name", [n for n in family_names() if n not in ("falcon", "nomic-bert-moe")])
def test_decoding_gives_the_text_back(name: str) -> None:
    # falcon's vocabulary lacks some bytes, and nomic's normalizer changes text
    tokenizer = Tokenizer.from_gguf(family_metadata(name))
    for text, row in zip(
        golden("families")["texts"], golden("families")["families"][name]["ids"], strict=True
    ):
        if row is not None and "▁" not in text:
            ids = tokenizer.encode(text, add_special=False)
            assert tokenizer.decode(ids) == text
            stream = tokenizer.detokenizer(continues=False)
            assert stream.push_all(ids) + stream.flush() == text


def byte_level(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary without merges but two; ids 0 to 255 are bytes."""
    from leafage.text.byte_level import BYTE_OF_CHAR

    alphabet = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__)
    extra = ["ab", "Ġa", "<|im_start|>", "<|im_end|>", "<think>", "<|endoftext|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": alphabet + extra,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 3, 4, 3],
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        "tokenizer.ggml.bos_token_id": 261,
        "tokenizer.ggml.eos_token_id": 261,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }
    return {key: value for key, value in metadata.items() if value is not None}


IM_START, IM_END, THINK, END_OF_TEXT = 258, 259, 260, 261


def test_t01_special_tokens_stay_text_unless_asked_for() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    text = "<|im_start|>ab<|im_end|>"
    assert tokenizer.encode(text, parse_special=True) == [IM_START, 256, IM_END]
    plain = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text


def test_t01_user_defined_tokens_are_read_in_any_text() -> None:
    assert THINK in Tokenizer.from_gguf(byte_level()).encode("a<think>b")


def test_t01_scored_merges_never_form_a_control_token() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<", "s", ">", "<s", "s>", "/"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -9.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("<s>", add_special=False) == [6, 5]
    assert tokenizer.encode("<s>", add_special=False, parse_special=True) == [1]
    assert tokenizer.eos_ids == {2}


@pytest.mark.parametrize("pre", ["my-own-pre", "kimi-k2", "LLAMA-BPE"])
def test_t04_unknown_pre_tokenizer_is_refused_by_name(pre: str) -> None:
    with pytest.raises(UnsupportedError, match=pre):
        Tokenizer.from_gguf(byte_level(pre=pre))


def test_t04_missing_pre_tokenizer_warns_by_name() -> None:
    with pytest.warns(MissingPreTokenizerWarning, match=r"tokenizer\.ggml\.pre"):
        Tokenizer.from_gguf(byte_level(pre=None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tokenizer.from_gguf(byte_level())


def test_t04_bos_is_none_where_the_file_declares_none() -> None:
    # llama.cpp falls back to id 11, which is a comma in many vocabularies
    tokenizer = Tokenizer.from_gguf(byte_level(bos_token_id=None, eos_token_id=None))
    assert tokenizer.bos_id is None
    assert tokenizer.eos_ids == {IM_END, END_OF_TEXT}
    assert Tokenizer.from_gguf(byte_level(bos_token_id=0xFFFFFFFF)).bos_id is None  # -1 in an unsigned field
    with pytest.raises(ModelFileError, match="BOS"):
        Tokenizer.from_gguf(byte_level(bos_token_id=None, add_bos_token=True))


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("add_eos", [False, True])
def test_bos_and_eos_as_declared_and_never_twice(add_bos: bool, add_eos: bool) -> None:
    tokenizer = Tokenizer.from_gguf(
        byte_level(add_bos_token=add_bos, add_eos_token=add_eos, bos_token_id=IM_START)
    )
    front, back = [IM_START] * add_bos, [END_OF_TEXT] * add_eos
    assert tokenizer.encode("ab") == [*front, 256, *back]
    assert tokenizer.encode("") == [*front, *back]
    assert tokenizer.encode("ab", add_special=False) == [256]
    written = "<|im_start|>ab<|endoftext|>"
    assert tokenizer.encode(written, parse_special=True) == [IM_START, 256, END_OF_TEXT]


@pytest.mark.parametrize(
    ("pre", "adds"),
    [("llama-bpe", True), ("tekken", True), ("smollm", False), ("qwen2", False), ("gpt-2", False)],
)
def test_bos_where_the_file_is_silent(pre: str, adds: bool) -> None:
    assert Tokenizer.from_gguf(byte_level(pre=pre)).add_bos is adds


def test_eos_ids_hold_every_end_of_generation_token() -> None:
    metadata = byte_level(eot_token_id=IM_START, eom_token_id=THINK)
    assert Tokenizer.from_gguf(metadata).eos_ids == {IM_START, IM_END, THINK, END_OF_TEXT}


def test_merges_out_of_vocabulary_are_left_out() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(merges=["x y", "a b"]))
    assert tokenizer.encode("xyab") == [ord("x"), ord("y"), 256]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": None}, ModelFileError, "tokenizer.ggml.model"),
        ({"model": "bert"}, UnsupportedError, "bert"),
        ({"tokens": None}, ModelFileError, "tokenizer.ggml.tokens"),
        ({"merges": None}, ModelFileError, "tokenizer.ggml.merges"),
        ({"model": "llama"}, ModelFileError, "tokenizer.ggml.scores"),
        ({"token_type": [1, 2, 3]}, ModelFileError, "shorter than the vocabulary"),
        ({"eos_token_id": 262}, ModelFileError, "eos_token_id"),
    ],
)
def test_broken_metadata_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Tokenizer.from_gguf(byte_level(**changes))
