"""The vocabulary of a GGUF file: tokens, their types and the rules that stand beside them.

Keys are those of the GGUF specification, `tokenizer.ggml.*`. Defaults where a file is silent are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from leafage.errors import ModelFileError, UnsupportedError
from leafage.text.special import named_end_ids

_PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class GgufVocab:
    """What a GGUF file says about its tokens.

    Attributes:
        model: `llama` (scored merges), `gpt2` (byte-level merges), `gemma4` (character merges) or `t5`.
        pre: name of the pre-tokenizer, or None when the file has none.
        tokens: text of each id.
        types: [len(tokens)] TokenType values.
        scores: per id, or None.
        merges: "left right" in order of rank, or None.
    """

    model: str
    pre: str | None
    tokens: Sequence[str]
    types: np.ndarray
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    merge_spaces: bool
    charsmap: bytes
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    ids_by_text: dict[str, int]
    strip_right: frozenset[int]

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of the given types, ascending."""
        ids: list[int] = np.nonzero(np.isin(self.types, types))[0].tolist()
        return ids

    @property
    def byte_ids(self) -> list[int | None]:
        """The id of `<0xNN>` for each byte, or None."""
        return [self.ids_by_text.get(f"<0x{byte:02X}>") for byte in range(256)]


def read_vocab(metadata: Mapping[str, Any]) -> GgufVocab:
    """Check and collect the tokenizer part of GGUF metadata.

    Raises:
        ModelFileError: a key is missing, has the wrong length or an id is out of range.
        UnsupportedError: a kind of tokenizer that Leafage does not have.
    """
    model = metadata.get(_PREFIX + "model")
    if not isinstance(model, str):
        raise ModelFileError(
            f"the file has no {_PREFIX}model, so its text cannot be read",
            value=model,
            remedy="convert it again",
        )
    if model not in ("llama", "gpt2", "gemma4", "t5"):
        raise UnsupportedError(
            f"tokenizer kind of {_PREFIX}model",
            value=model,
            limit="llama, gpt2, gemma4, t5",
            remedy="use a model with one of these tokenizers",
        )
    tokens = metadata.get(_PREFIX + "tokens")
    if tokens is None or not len(tokens):
        raise ModelFileError(
            f"the file has no {_PREFIX}tokens", remedy="convert it again with its vocabulary"
        )
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    size = len(tokens)

    def column(key: str, wanted: bool) -> Any:
        values = metadata.get(_PREFIX + key)
        if values is None and wanted:
            raise ModelFileError(
                f"a {model!r} tokenizer needs {_PREFIX}{key}", remedy="convert the model again"
            )
        return values

    def id_of(key: str, default: int | None) -> int | None:
        value = metadata.get(_PREFIX + key + "_token_id")
        if value is None or value in (-1, 0xFFFFFFFF):  # -1, written as unsigned, means none
            return default if default is not None and default < size else None
        if not 0 <= int(value) < size:
            raise ModelFileError(
                f"{_PREFIX}{key}_token_id is no token",
                value=int(value),
                limit=f"0 to {size - 1}",
                remedy="correct the file's metadata",
            )
        return int(value)

    types = column("token_type", False)
    types = np.full(size, TokenType.NORMAL, np.int32) if types is None else np.array(types, np.int32)
    scores = column("scores", model in ("llama", "t5"))
    if len(types) < size or (scores is not None and len(scores) < size):
        raise ModelFileError(
            "token_type or scores is shorter than the vocabulary",
            limit=f"{size} entries",
            remedy="convert it again",
        )
    ids_by_text = dict(zip(tokens, range(size), strict=True))

    scored = model == "llama"  # where a file is silent, the ids of the first Llama vocabulary
    eos = id_of("eos", 2 if scored else 1 if model == "t5" else None)
    declared = [eos, id_of("eot", None), id_of("eom", None)]
    control = frozenset(np.nonzero(types == TokenType.CONTROL)[0].tolist())
    named = named_end_ids(ids_by_text, control)
    types[list(named)] = TokenType.CONTROL  # some conversions leave them ordinary; they are never text
    special = frozenset(np.nonzero(np.isin(types, (TokenType.CONTROL, TokenType.UNKNOWN)))[0].tolist())
    return GgufVocab(
        model=model,
        pre=metadata.get(_PREFIX + "pre") or None,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=column("merges", model in ("gpt2", "gemma4")),
        bos_id=id_of("bos", 1 if scored else None),
        eos_id=eos,
        unknown_id=id_of("unknown", 0 if scored else 2 if model == "t5" else None),
        add_bos=metadata.get(_PREFIX + "add_bos_token"),
        add_eos=metadata.get(_PREFIX + "add_eos_token"),
        add_space_prefix=metadata.get(_PREFIX + "add_space_prefix"),
        merge_spaces=bool(metadata.get(_PREFIX + "remove_extra_whitespaces", False)),
        charsmap=np.array(metadata.get(_PREFIX + "precompiled_charsmap", ())).astype(np.uint8).tobytes(),
        eos_ids=named.union(token_id for token_id in declared if token_id is not None),
        special_ids=special,
        ids_by_text=ids_by_text,
        strip_right=_strip_right(metadata, ids_by_text, types),
    )


def _strip_right(
    metadata: Mapping[str, Any], ids_by_text: Mapping[str, int], types: np.ndarray
) -> frozenset[int]:
    """Tokens that swallow the white space behind them: GGUF has no key for it, and Phi-3 needs it."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    strip = set(np.nonzero(np.isin(types, kinds))[0].tolist())
    strip.add(ids_by_text.get("</s>", -1))
    strip -= {ids_by_text.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset(strip)
