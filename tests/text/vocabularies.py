"""Stored vocabularies: for each family the part of the real one that the stored texts can reach.

`scripts/golden/make_text_golden.py` makes them. A token that is no substring of any text can take no part
in its tokenization, so the results are those of the whole vocabulary; the other ids are left empty.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
UNUSED = 5


@cache
def golden(name: str) -> dict[str, Any]:
    """The content of golden/NAME.json.gz."""
    content: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))
    return content


def family_names() -> list[str]:
    return list(golden("families")["families"])


def family_metadata(name: str) -> dict[str, Any]:
    """GGUF metadata of a family, as the reader of a file gives it.

    With LEAFAGE_TEST_VOCABS naming llama.cpp's `models` folder, that of the whole vocabulary.
    """
    folder = os.environ.get("LEAFAGE_TEST_VOCABS")
    if folder:
        from leafage.formats.gguf import read_gguf

        return read_gguf(Path(folder) / f"ggml-vocab-{name}.gguf")[0]
    stored = golden("families")["families"][name]
    metadata = dict(stored["metadata"])
    size = stored["size"]
    tokens, types, scores = [""] * size, [UNUSED] * size, [-1e9] * size
    for token_id, text, kind, *score in stored["tokens"]:
        tokens[token_id] = text
        types[token_id] = kind
        scores[token_id] = score[0] if score else 0.0
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = types
    if len(stored["tokens"][0]) > 3:
        metadata["tokenizer.ggml.scores"] = scores
    if stored["merges"] is not None:
        metadata["tokenizer.ggml.merges"] = stored["merges"]
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None:
        metadata["tokenizer.ggml.precompiled_charsmap"] = list(base64.b64decode(charsmap))
    return metadata


def without_double(ids: list[int], bos: int | None, eos: int | None) -> list[int]:
    """llama.cpp adds BOS and EOS also where the text already has them; Leafage never writes two."""
    if bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    if eos is not None and ids[-2:] == [eos, eos]:
        ids = ids[:-1]
    return ids
