"""Bytes in vocabularies: GPT-2's alphabet of one printable character per byte, and `<0xNN>`."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in table]
    table.update((chr(0x100 + i), byte) for i, byte in enumerate(others))
    return table


BYTE_OF_CHAR = _alphabet()
"""The byte that a character of a byte-level token stands for (Radford et al. 2019, the GPT-2 encoder)."""


def token_to_bytes(text: str) -> bytes:
    """The bytes of a byte-level token; a token outside the alphabet is its own UTF-8."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in text])
    except KeyError:
        return text.encode(errors="replace")


def byte_of(text: str) -> int | None:
    """The byte that a `<0xNN>` token stands for, or None for other tokens."""
    if len(text) != 6 or not text.startswith("<0x") or text[5] != ">":
        return None
    try:
        return int(text[3:5], 16)
    except ValueError:
        return None
