"""The GGUF reader and anything at all: an answer or a readable error, in little time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.gguf import read_gguf
from tests.formats.gguf_bytes import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    Q4_0,
    STRING,
    U32,
    array,
    entry,
    header,
    padded,
    string,
    tensor,
)


def realistic_header() -> bytes:
    vocabulary = b"".join(string(f"tok{i}") for i in range(300))
    entries = [
        ARCHITECTURE,
        entry("llama.block_count", U32, struct.pack("<I", 2)),
        entry("llama.rope.freq_base", F32, struct.pack("<f", 1e4)),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, 300, vocabulary)),
        entry("tokenizer.ggml.scores", ARRAY, array(F32, 300, b"\0" * 1200)),
        entry("tokenizer.chat_template", STRING, string("{{ messages }}" * 40)),
        entry("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
    ]
    index = [tensor(f"blk.{i}.attn_q.weight", [64, 4], Q4_0, 160 * i) for i in range(8)]
    return padded(header(entries, index), bytes(range(256)) * 5)


REALISTIC = realistic_header()


def survive(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        _, parts = read_gguf(path)
    except (ModelFileError, UnsupportedError) as error:
        assert str(path) in str(error)
        assert len(str(error)) < 1000
        return
    for file, tensors in parts:
        for t in tensors:
            assert len(file.view(t.offset, t.num_bytes)) == t.num_bytes
        file.close()


def test_every_truncation(tmp_path):
    path = tmp_path / "m.gguf"
    last = len(REALISTIC) - 100
    for end in [*range(1, 400), *range(400, last, 113)]:
        path.write_bytes(REALISTIC[:end])
        with pytest.raises(ModelFileError):
            read_gguf(path)


@given(st.lists(st.tuples(st.integers(0, len(REALISTIC) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes(tmp_path_factory, changes):
    content = bytearray(REALISTIC)
    for at, value in changes:
        content[at] = value
    survive(tmp_path_factory.getbasetemp() / "changed.gguf", bytes(content))


@given(
    st.integers(0, len(REALISTIC) - 8),
    st.sampled_from([2**64 - 1, 2**63, 2**63 - 1, 2**40, 2**32, 2**31 - 1, 1 << 24, 0]),
)
def test_changed_numbers(tmp_path_factory, at, value):
    content = REALISTIC[:at] + struct.pack("<Q", value) + REALISTIC[at + 8 :]
    survive(tmp_path_factory.getbasetemp() / "numbers.gguf", content)


@given(st.binary(max_size=400))
def test_random_bytes_after_the_magic(tmp_path_factory, tail):
    survive(tmp_path_factory.getbasetemp() / "random.gguf", b"GGUF\3\0\0\0" + tail)


def test_every_bit_of_the_prelude_and_first_entries(tmp_path):
    for at in range(100):
        for bit in range(8):
            content = bytearray(REALISTIC)
            content[at] ^= 1 << bit
            survive(tmp_path / "bit.gguf", bytes(content))


@pytest.mark.parametrize(
    "strings",
    [
        string("x" * 300) * 20_000,  # never the fast way
        (string("ab") + string("")) * 300_000,  # an unbroken chain of two, always
        string("a\0b") * 300_000,  # zeros inside
        (string("ab") * 257 + string(b"\0" * 64)) * 1000,
    ],
    ids=["long", "empty", "zeros", "interrupted"],
)
def test_time_and_memory_stay_proportional(tmp_path, strings):
    count = 0
    pos = 0
    while pos < len(strings):
        pos += 8 + struct.unpack_from("<Q", strings, pos)[0]
        count += 1
    path = tmp_path / "m.gguf"
    path.write_bytes(header([entry("a" * 60_000, ARRAY, array(STRING, count, strings))]))
    start = time.process_time()
    metadata, _ = read_gguf(path)
    seconds = time.process_time() - start
    assert sum(map(len, metadata["a" * 60_000])) == len(strings) - 8 * count
    # 5 us a string, and 50 ns a byte: an order of magnitude of slack for slow machines
    assert seconds < 0.2 + 5e-6 * count + 5e-8 * len(strings), seconds


def test_small_corrupt_files_allocate_little(tmp_path):
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(0)
    path.write_bytes(REALISTIC)
    read_gguf(path)
    tracemalloc.start()
    for _ in range(300):
        content = bytearray(REALISTIC)
        at = int(rng.integers(0, len(content) - 8))
        content[at : at + 8] = struct.pack("<Q", int(rng.integers(2**20, 2**63)))
        survive(path, bytes(content))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
