"""Tokenizers from GGUF metadata: byte-level BPE through the `tokenizers` library, scored BPE by `spm`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from leafage.errors import ModelFileError, UnsupportedError
from leafage.text.byte_level import byte_of, token_to_bytes
from leafage.text.gguf_vocab import GgufVocab, TokenType, read_vocab
from leafage.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from leafage.text.special import LITERAL_MARK, TokenFinder
from leafage.text.spm import SPACE_MARK, SpmEncoder
from leafage.text.unigram import Charsmap, UnigramEncoder


class MissingPreTokenizerWarning(UserWarning):
    """A GGUF file without `tokenizer.ggml.pre`: its text is cut by default rules, perhaps the wrong ones."""


def build(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Tokenizer` for a GGUF file."""
    vocab = read_vocab(metadata)
    add_bos, add_eos, add_space = False, False, False
    encode_text: Callable[[str], list[int]]
    if vocab.model == "llama":
        add_bos, add_space = True, True
        encode_text = _spm(vocab).encode
    elif vocab.model == "gpt2":
        family = _pre_tokenizer(vocab)
        add_bos = family.add_bos
        encode_text = _byte_level_bpe(vocab, family)
    elif vocab.model == "gemma4":
        add_bos = True
        encode_text = _character_bpe(vocab)
    else:
        add_eos = True
        encode_text = _unigram(vocab).encode
    add_space = add_space if vocab.add_space_prefix is None else bool(vocab.add_space_prefix)
    return {
        # the unigram encoder places spaces itself, after its normalizer
        "encoder": _Encoder(vocab, encode_text, add_space and vocab.model != "t5"),
        "tokens": vocab.tokens,
        "token_bytes": _token_bytes(vocab),
        "bos_id": vocab.bos_id,
        "eos_id": vocab.eos_id,
        "eos_ids": vocab.eos_ids,
        "special_ids": vocab.special_ids,
        "prefix": _added("BOS", add_bos if vocab.add_bos is None else bool(vocab.add_bos), vocab.bos_id),
        "suffix": _added("EOS", add_eos if vocab.add_eos is None else bool(vocab.add_eos), vocab.eos_id),
        "strip_space": add_space or vocab.merge_spaces,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }


def _added(name: str, wanted: bool, token_id: int | None) -> list[int]:
    if wanted and token_id is None:
        raise ModelFileError(
            f"the tokenizer asks for {name} but declares no such id", remedy="correct the model's metadata"
        )
    return [token_id] if wanted and token_id is not None else []


class _Encoder:
    """Special tokens first, then the text between them, as llama.cpp does.

    User-defined tokens are read in any text; control and unknown tokens only where `parse_special` says so.
    """

    def __init__(self, vocab: GgufVocab, encode_text: Callable[[str], list[int]], add_space: bool) -> None:
        user_defined = {vocab.tokens[i]: i for i in vocab.ids_of(TokenType.USER_DEFINED)}
        # A control token of one character could not be told from text, so it is never read.
        special = {vocab.tokens[i]: i for i in vocab.special_ids if len(vocab.tokens[i]) > 1}
        self._always = TokenFinder(user_defined, vocab.strip_right)
        self._parsed = TokenFinder({**user_defined, **special}, vocab.strip_right)
        self._encode_text = encode_text
        self._add_space = add_space

    def __call__(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        first = True  # a space goes in front of the text and of what follows a special token
        for piece in (self._parsed if parse_special else self._always).split(text):
            if isinstance(piece, int):
                ids.append(piece)
                first = True
                continue
            if parse_special:
                piece = piece.replace(LITERAL_MARK, "")
            ids += self._encode_text(" " + piece if first and self._add_space else piece)
            first = False
        return ids


def _pre_tokenizer(vocab: GgufVocab) -> PreTokenizer:
    if vocab.pre is None:
        warnings.warn(
            "the file has no tokenizer.ggml.pre (it was made before that key existed): it is cut by default "
            "rules, and answers may be worse than need be. Convert the model again, or take a newer file",
            MissingPreTokenizerWarning,
            stacklevel=5,
        )
        return PRE_TOKENIZERS["default"]
    family = PRE_TOKENIZERS.get(vocab.pre)
    if family is None:
        raise UnsupportedError(
            "pre-tokenizer of tokenizer.ggml.pre, and guessing one would silently give wrong tokens",
            value=vocab.pre,
            limit=", ".join(sorted(PRE_TOKENIZERS)),
            remedy="use another model, or report this one",
        )
    return family


def _byte_level_bpe(vocab: GgufVocab, family: PreTokenizer) -> Callable[[str], list[int]]:
    engine = Engine(_bpe_model(vocab, ignore_merges=family.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in family.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])

    def encode(text: str) -> list[int]:
        ids: list[int] = engine.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _character_bpe(vocab: GgufVocab) -> Callable[[str], list[int]]:
    """Listed merges over characters with spaces as U+2581 and bytes as `<0xNN>` (Gemma 4)."""
    engine = Engine(_bpe_model(vocab, byte_fallback=True))
    lines = re.compile(r"\n+|[^\n]+")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for piece in lines.findall(text.replace(" ", SPACE_MARK)):
            whole = vocab.ids_by_text.get(piece) if piece[0] == "\n" else None
            ids += engine.encode(piece, add_special_tokens=False).ids if whole is None else [whole]
        return ids

    return encode


def _bpe_model(vocab: GgufVocab, **options: Any) -> models.BPE:
    known = vocab.ids_by_text.copy()
    for token_id in vocab.special_ids:
        known.pop(vocab.tokens[token_id], None)  # text never becomes a control token
    assert vocab.merges is not None
    # "a b" splits at the first space that is not the first character
    merges = [(text[: (at := text.find(" ", 1))], text[at + 1 :]) for text in vocab.merges]
    try:
        return models.BPE(known, merges, **options)
    except Exception:
        # Some files list merges whose parts or result are not in the vocabulary; they could never apply.
        usable = [
            pair for pair in merges if pair[0] in known and pair[1] in known and pair[0] + pair[1] in known
        ]
        if len(usable) == len(merges):
            raise ModelFileError(
                "the merges do not fit the vocabulary", remedy="convert the model again"
            ) from None
        return models.BPE(known, usable, **options)


def _spm(vocab: GgufVocab) -> SpmEncoder:
    mergeable = vocab.ids_by_text.copy()
    for token_id in vocab.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE):
        mergeable.pop(vocab.tokens[token_id], None)
    assert vocab.scores is not None
    return SpmEncoder(mergeable, vocab.scores, vocab.byte_ids, vocab.unknown_id)


def _unigram(vocab: GgufVocab) -> UnigramEncoder:
    usable = vocab.ids_by_text.copy()
    for token_id in vocab.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE):
        usable.pop(vocab.tokens[token_id], None)
    assert vocab.scores is not None
    if vocab.unknown_id is None:
        raise ModelFileError("a unigram tokenizer needs an unknown token", remedy="convert the model again")
    scores = np.asarray(vocab.scores)
    return UnigramEncoder(
        usable,
        scores.tolist(),
        float(scores[vocab.ids_of(TokenType.NORMAL)].min(initial=0.0)),
        vocab.unknown_id,
        Charsmap(vocab.charsmap),
        add_space=bool(vocab.add_space_prefix),
        merge_spaces=vocab.merge_spaces,
    )


def _token_bytes(vocab: GgufVocab) -> Callable[[int], bytes]:
    tokens, types = vocab.tokens, vocab.types
    byte_level = vocab.model == "gpt2"

    def token_bytes(token_id: int) -> bytes:
        text, kind = tokens[token_id], types[token_id]
        if kind == TokenType.BYTE and (byte := byte_of(text)) is not None:
            return bytes([byte])
        if kind == TokenType.UNUSED:
            return b""
        if kind != TokenType.NORMAL:
            return text.encode(errors="replace")
        return token_to_bytes(text) if byte_level else text.replace(SPACE_MARK, " ").encode(errors="replace")

    return token_bytes
