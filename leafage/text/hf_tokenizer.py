"""Tokenizers from a Hugging Face folder: tokenizer.json through the library that defines it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import normalizers

from leafage.errors import ModelFileError, UnsupportedError
from leafage.text.byte_level import byte_of, token_to_bytes
from leafage.text.special import LITERAL_MARK, named_end_ids


def build(folder: Path) -> dict[str, Any]:
    """The arguments of `Tokenizer` for a folder."""
    engine = _load(folder / "tokenizer.json")
    config = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    model_config = _read_json(folder / "config.json")

    ids_by_text = engine.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids_by_text.values(), default=-1) + 1)
    for text, token_id in ids_by_text.items():
        tokens[token_id] = text
    added = engine.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    named = named_end_ids(ids_by_text, frozenset(special))
    special |= named & added.keys()

    def id_of(key: str) -> int | None:
        value = config.get(f"{key}_token", model_config.get(f"{key}_token_id"))
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, int) else ids_by_text.get(value) if isinstance(value, str) else None

    bos, eos = id_of("bos"), id_of("eos")
    ends = set(named)
    for value in (eos, generation.get("eos_token_id"), model_config.get("eos_token_id")):
        ends.update(value if isinstance(value, list) else [] if value is None else [value])

    prefix, suffix = _added(engine, config, bos, eos)
    token_bytes, strip_space = _decoder(engine, tokens, frozenset(added))
    return {
        "encoder": _Encoder(engine),
        "tokens": tokens,
        "token_bytes": token_bytes,
        "bos_id": bos,
        "eos_id": eos,
        "eos_ids": frozenset(ends),
        "special_ids": frozenset(special),
        "prefix": prefix,
        "suffix": suffix,
        "strip_space": strip_space,
        "chat_template": _chat_template(folder, config),
    }


def _added(
    engine: Engine, config: dict[str, Any], bos: int | None, eos: int | None
) -> tuple[list[int], list[int]]:
    """What the post-processor writes before and after a text.

    For Llama and Gemma classes transformers rebuilds it from `add_bos_token` and `add_eos_token`, so there
    these win.
    """
    bare = engine.encode("a", add_special_tokens=False).ids
    full = engine.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    prefix, suffix = full[:start], full[start + len(bare) :]
    if str(config.get("tokenizer_class", "")).startswith(("Llama", "CodeLlama", "Gemma")):
        for key, token_id in (("add_bos_token", bos), ("add_eos_token", eos)):
            wanted = config.get(key)
            if isinstance(wanted, bool) and token_id is not None:
                ids = [token_id] if wanted else []
                prefix, suffix = (ids, suffix) if key == "add_bos_token" else (prefix, ids)
    return prefix, suffix


class _Encoder:
    """The library's tokenizer; whether it reads special tokens is a switch on it, hence the lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        # Added tokens are found before the normalizer runs, so that what the mark breaks stays text.
        unmark = normalizers.Replace(LITERAL_MARK, "")
        own = engine.normalizer
        engine.normalizer = unmark if own is None else normalizers.Sequence([unmark, own])

    def __call__(self, text: str, parse_special: bool) -> list[int]:
        with self._lock:
            self._engine.encode_special_tokens = not parse_special
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids


def _load(path: Path) -> Engine:
    if not path.is_file():
        raise ModelFileError(
            "the folder has no tokenizer.json",
            value=str(path),
            remedy="save the model with its fast tokenizer",
        )
    try:
        engine = Engine.from_file(str(path))
        if any(token.special and token.normalized for token in engine.get_added_tokens_decoder().values()):
            # Matched after normalization, such a token would also be found where the mark had broken it.
            source = json.loads(path.read_text(encoding="utf-8"))
            for token in source["added_tokens"]:
                token["normalized"] = token["normalized"] and not token["special"]
            engine = Engine.from_str(json.dumps(source))
    except Exception as error:
        raise ModelFileError(
            f"tokenizer.json does not parse: {error}", value=str(path), remedy="fetch the file again"
        ) from None
    engine.no_padding()
    engine.no_truncation()
    return engine


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(
            f"{path.name} does not parse: {error}", value=str(path), remedy="fetch it again"
        ) from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{path.name} is no JSON object", value=str(path), remedy="fetch it again")
    return content


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _decoder(engine: Engine, tokens: list[str], added: frozenset[int]) -> tuple[Callable[[int], bytes], bool]:
    """Bytes per token, and whether the encoder puts a space before a text, from the file's decoder."""
    state: dict[str, Any] = {"type": "none"}
    if engine.decoder is not None:
        state = json.loads(engine.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:

        def byte_level(token_id: int) -> bytes:
            text = tokens[token_id]
            return text.encode(errors="replace") if token_id in added else token_to_bytes(text)

        return byte_level, False
    known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if not kinds <= known or not kinds & {"Replace", "Metaspace"}:
        raise UnsupportedError(
            "decoder of tokenizer.json",
            value=state["type"],
            limit="ByteLevel, Metaspace, or a sequence of " + ", ".join(sorted(known)),
            remedy="use a model made for generation",
        )
    replacements: list[tuple[str, str]] = []
    strip = False
    for step in steps:
        if step["type"] == "Replace":
            replacements.append((step["pattern"].get("String", ""), step["content"]))
        elif step["type"] == "Metaspace":
            replacements.append((step["replacement"], " "))
            strip = step.get("prepend_scheme", "always") != "never"
        elif step["type"] == "Strip":
            strip = step["content"] == " " and step["start"] > 0
    byte_fallback = "ByteFallback" in kinds

    def scored(token_id: int) -> bytes:
        text = tokens[token_id]
        if token_id in added:
            return text.encode(errors="replace")
        if byte_fallback and (byte := byte_of(text)) is not None:
            return bytes([byte])
        for old, new in replacements:
            if old:
                text = text.replace(old, new)
        return text.encode(errors="replace")

    return scored, strip
