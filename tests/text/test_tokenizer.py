"""The real vocabularies of SmolLM2 and Gemma 3: ids of llama.cpp, round trips, speed."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.errors import InvalidParameterError
from leafage.formats.gguf import read_gguf
from leafage.text.tokenizer import Tokenizer
from tests.text.vocabularies import family_metadata, golden, without_double

pytestmark = pytest.mark.real_model


@cache
def load(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(path)[0])


@pytest.fixture(params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> tuple[str, Path]:
    return request.param, request.getfixturevalue(f"{request.param}_path")


def test_ids_are_llama_cpp_ids(model: tuple[str, Path]) -> None:
    name, path = model
    tokenizer = load(path)
    stored = golden(name)
    front = stored["front"]
    assert tokenizer.add_bos is bool(front)
    for text, plain, special in zip(stored["texts"], stored["plain"], stored["special"], strict=True):
        special = plain if special is None else special
        assert tokenizer.encode(text, add_special=False) == plain, text
        assert tokenizer.encode(text) == front + plain, text
        assert tokenizer.encode(text, add_special=False, parse_special=True) == special, text
        expected = without_double(front + special, tokenizer.bos_id if front else None, None)
        assert tokenizer.encode(text, parse_special=True) == expected, text
    assert len(stored["texts"]) > 1900


def test_decoding_gives_the_text_back(model: tuple[str, Path]) -> None:
    name, path = model
    tokenizer = load(path)
    for text, plain, special in zip(
        *(golden(name)[key] for key in ("texts", "plain", "special")), strict=True
    ):
        if name == "gemma3" and "▁" in text:
            continue  # U+2581 stands for a space in SentencePiece vocabularies
        assert tokenizer.decode(plain) == text
        assert tokenizer.decode(plain if special is None else special, skip_special_tokens=False) == text
        stream = tokenizer.detokenizer()
        pushed = [stream.push(token_id) for token_id in plain]
        assert "".join(pushed) + stream.flush() == text
        assert text.count("\ufffd") == "".join(pushed).count("\ufffd")


@pytest.mark.parametrize(
    "text", ["삼겹살", "😊", "🇰🇷🇫🇷", "👨\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "𝓗𝓮𝓵𝓵𝓸 漢字"]
)
def test_s06_no_half_characters(model: tuple[str, Path], text: str) -> None:
    tokenizer = load(model[1])
    stream = tokenizer.detokenizer()
    pushed = [stream.push(token_id) for token_id in tokenizer.encode(text, add_special=False)]
    assert "".join(pushed) == text
    assert stream.flush() == ""


# The vocabulary has no tokens for some control characters, nor for planes that hold no characters yet.
@given(
    st.text(
        st.characters(
            max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d"
        ),
        max_size=80,
    )
)
def test_any_text_comes_back(smollm2_path: Path, text: str) -> None:
    tokenizer = load(smollm2_path)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.special_ids.intersection(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_two_spaces_before_a_digit(model: tuple[str, Path]) -> None:
    tokenizer = load(model[1])
    ids = tokenizer.encode("a  3", add_special=False)
    assert [tokenizer.token_text(i) for i in ids] == ["a", "  ", "3"]


def test_what_the_files_declare(smollm2_path: Path, gemma3_path: Path) -> None:
    smollm2, gemma3 = load(smollm2_path), load(gemma3_path)
    assert (smollm2.vocab_size, gemma3.vocab_size) == (49152, 262144)
    assert (smollm2.bos_id, smollm2.add_bos, smollm2.eos_ids) == (1, False, {0, 2})
    assert (gemma3.bos_id, gemma3.add_bos, gemma3.eos_ids) == (2, True, {1, 106})
    assert smollm2.chat_template is not None
    assert gemma3.chat_template is None
    assert [gemma3.token_text(i) for i in sorted(gemma3.eos_ids)] == ["<eos>", "<end_of_turn>"]


def test_lone_surrogates_become_replacement_characters(model: tuple[str, Path]) -> None:
    tokenizer = load(model[1])
    assert tokenizer.decode(tokenizer.encode("a\ud83db")).strip("\ufffd").replace("\ufffd", "") == "ab"


def test_only_text_is_encoded(smollm2_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="bytes"):
        load(smollm2_path).encode(b"abc")  # type: ignore[arg-type]


def best_time(work: object, repeats: int) -> float:
    """Least of several CPU times: other work on the machine only ever adds to it."""
    assert callable(work)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize(("name", "limit"), [("smollm2", 0.15), ("gemma3", 1.0)])
def test_t05_vocabulary_is_ready_in_time(name: str, limit: float, request: pytest.FixtureRequest) -> None:
    metadata = read_gguf(request.getfixturevalue(f"{name}_path"))[0]
    assert best_time(lambda: Tokenizer.from_gguf(metadata).encode("Hello"), 5) <= limit


@pytest.mark.parametrize(
    "unit",
    [" ", "a", "\n", "<", "<unused", "ab ", "日本語の文章", "👨\u200d👩\u200d👧\u200d👦", "1", "\t ", "'s"],
)
def test_hard_texts_take_linear_time(model: tuple[str, Path], unit: str) -> None:
    tokenizer = load(model[1])
    text = unit * (100_000 // len(unit))
    assert best_time(lambda: tokenizer.encode(text), 2) < 1.5
    assert best_time(lambda: tokenizer.encode(text, parse_special=True), 1) < 1.5


def test_pushing_a_token_is_cheap(model: tuple[str, Path]) -> None:
    tokenizer = load(model[1])
    ids = tokenizer.encode("The quick brown fox saw 3 cafés. 日本語😊 " * 200)

    def push_all() -> None:
        stream = tokenizer.detokenizer()
        for token_id in ids:
            stream.push(token_id)

    assert best_time(push_all, 5) / len(ids) < 10e-6


def test_a_space_in_front_belongs_to_text_that_goes_on() -> None:
    tokenizer = Tokenizer.from_gguf(family_metadata("llama-spm"))
    ids = tokenizer.encode("Hello", add_special=False)
    assert tokenizer.decode(ids) == "Hello"
    assert tokenizer.decode(ids, continues=True) == " Hello"
    stream = tokenizer.detokenizer()
    assert stream.push_all(ids) + stream.flush() == " Hello"


@pytest.mark.parametrize("name", ["llama-spm", "qwen2", "phi-3"])
@pytest.mark.parametrize("rest", ["\n\nx y", " a", "a", "", "  1", "é\n"])
def test_text_that_goes_on_gets_no_space_in_front(name: str, rest: str) -> None:
    tokenizer = Tokenizer.from_gguf(family_metadata(name))
    ids = tokenizer.encode("Hello", add_special=False)
    ids += tokenizer.encode(rest, continues=True)
    assert tokenizer.decode(ids) == f"Hello{rest}"
