"""GGUF files byte by byte, right and wrong ones."""

from __future__ import annotations

import struct
from pathlib import Path

from leafage.formats.gguf import read_gguf

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9
Q4_0 = 2


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    head = string(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


ARCHITECTURE = entry("general.architecture", STRING, string("llama"))


def header(entries: list[bytes], tensors: list[bytes] = (), version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(entries))
    return b"GGUF" + counts + b"".join(entries) + b"".join(tensors)


def padded(head: bytes, data: bytes = b"", alignment: int = 32) -> bytes:
    return head + b"\0" * (-len(head) % alignment) + data


def read(path: Path):
    """Metadata, and by name (entry, bytes) of every tensor."""
    metadata, parts = read_gguf(path)
    tensors = {t.name: (t, bytes(file.view(t.offset, t.num_bytes))) for file, ts in parts for t in ts}
    for file, _ in parts:
        file.close()
    return metadata, tensors
