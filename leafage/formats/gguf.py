"""GGUF v2 and v3: metadata and tensor index of a model file, checked while it is read.

A file is: magic, version, number of tensors, number of metadata entries, the entries, the tensor index,
padding to `general.alignment`, the data. Nothing in it is trusted: every count is bounded by the bytes that
are left, so time and memory stay proportional to the header whatever the header says.
Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from leafage.errors import ModelFileError, ModelNotFoundError
from leafage.formats.dequantize import BLOCKS, unsupported_dtype
from leafage.formats.mapped_file import MappedFile, TensorEntry, quoted

# Metadata and index may take this many bytes: the largest vocabularies in use need a fifth of it.
MAX_HEADER_BYTES = 64 << 20
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSOR_NAME_BYTES = 1024
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# Tensor types by number. Integers and doubles are listed but no weight may use them.
_DTYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    23: "IQ4_XS",
    30: "BF16",
    39: "MXFP4",
}
_UNSUPPORTED_DTYPES = {
    4: "Q4_2 (removed)",
    5: "Q4_3 (removed)",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4 (removed)",
    32: "Q4_0_4_8 (removed)",
    33: "Q4_0_8_8 (removed)",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4 (removed)",
    37: "IQ4_NL_4_8 (removed)",
    38: "IQ4_NL_8_8 (removed)",
    40: "NVFP4",
    41: "Q1_0",
}

_AGAIN = "the file is truncated or corrupt: fetch it again"
_CONVERT = "convert the model anew with current tools"
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<total>\d{5})\.gguf", re.DOTALL)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Strings are read in windows of this size; a window whose strings are all short is cut in one go.
_WINDOW = 1 << 16
_SEPARATOR = "\0" * 8

Metadata = dict[str, Any]
Part = tuple[MappedFile, list[TensorEntry]]


def read_gguf(path: Path) -> tuple[Metadata, list[Part]]:
    """Open a GGUF file, or all parts of a split one, given any part.

    Returns:
        The metadata of the (first) file: numbers, booleans, strings; arrays of strings as `list[str]`, other
        arrays as read-only NumPy arrays. And for each file its map and tensor index.

    Raises:
        ModelNotFoundError: no such file.
        ModelFileError: not GGUF, truncated, corrupt, or a part is missing or of another model.
        UnsupportedError: a tensor has a type that Leafage does not read.
    """
    with ExitStack() as on_error:
        result = _read_parts(path, on_error)
        on_error.pop_all()
    return result


def _read_parts(path: Path, on_error: ExitStack) -> tuple[Metadata, list[Part]]:
    paths = _part_paths(path)
    if len(paths) > 1 and not os.path.isfile(path):
        raise ModelNotFoundError(f"no such file: {path}", remedy="check the path")
    first: Metadata = {}
    parts: list[Part] = []
    names: dict[str, Path] = {}
    for number, part_path in enumerate(paths):
        try:
            file = MappedFile(part_path)
        except ModelNotFoundError as error:
            if len(paths) == 1:
                raise
            raise ModelFileError(
                f"part {number + 1} of {len(paths)} of the split model is missing",
                value=str(part_path),
                remedy="put all parts in one folder",
            ) from error
        on_error.callback(file.close)
        header = _Header(file)
        metadata, tensors = header.read()
        file.release(0, header.pos)  # copied
        _check_split(part_path, metadata, number, len(paths))
        if number == 0:
            first = metadata
        for tensor in tensors:
            if tensor.name in names:
                raise ModelFileError(
                    f"{part_path}: tensor {quoted(tensor.name)} is also in part {names[tensor.name].name}"
                )
            names[tensor.name] = part_path
        parts.append((file, tensors))
    expected = first.get("split.tensors.count")
    if len(paths) > 1 and isinstance(expected, int) and expected != len(names):
        raise ModelFileError(
            f"{paths[0]}: the parts together hold the wrong number of tensors",
            value=len(names),
            limit=expected,
        )
    return first, parts


def _part_paths(path: Path) -> list[Path]:
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    part, total = int(match["part"]), int(match["total"])
    if not 1 <= part <= total:
        raise ModelFileError(f"{path}: the name says part {part} of {total}", limit=f"1 to {total}")
    return [path.with_name(f"{match['stem']}-{i:05d}-of-{total:05d}.gguf") for i in range(1, total + 1)]


def _check_split(path: Path, metadata: Metadata, number: int, total: int) -> None:
    count, index = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if not (isinstance(count, int) and isinstance(index, int)):
        raise ModelFileError(f"{path}: split.count or split.no is not a number")
    if total == 1 and count > 1:
        raise ModelFileError(
            f"{path} is one of {count} parts of a split model, but its name does not say so",
            remedy="name the parts NAME-00001-of-000NN.gguf, as they were made",
        )
    if total > 1 and (index, count) != (number, total):
        raise ModelFileError(
            f"{path}: the metadata disagrees with the file name: split.no {index} of split.count {count}",
            limit=f"{number} of {total}",
        )


class _Header:
    """A cursor over the header of one file. Every read checks what is left and names what it was reading."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.size = file.size
        self.buffer = file.buffer
        self.pos = 0
        self.end = min(file.size, MAX_HEADER_BYTES)

    def read(self) -> tuple[Metadata, list[TensorEntry]]:
        num_tensors, num_entries = self._prelude()
        metadata: Metadata = {}
        for _ in range(num_entries):
            start = self.pos
            key = self._string("metadata key", MAX_KEY_BYTES)
            if key in metadata:
                self._fail(f"metadata key {quoted(key)} appears twice", at=start)
            metadata[key] = self._value(quoted(key))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self._fail("general.alignment", value=alignment, limit="powers of two")
        index = [self._index_entry() for _ in range(num_tensors)]
        data_start = (self.pos + alignment - 1) // alignment * alignment
        return metadata, self._check_index(index, data_start, alignment)

    def _prelude(self) -> tuple[int, int]:
        magic = self.buffer[:4]
        if magic == b"FUGG":
            self._big_endian()
        if magic != b"GGUF":
            remedy = "name a .gguf file, or fetch it again"
            if self.buffer[:7] == b"version":
                remedy = "this is a Git LFS pointer: fetch the file itself (git lfs pull)"
            self._fail("not a GGUF file: its magic", value=magic, limit=b"GGUF", remedy=remedy, at=0)
        self.pos = 4
        version = self._u32("version")
        if version & 0xFFFF == 0 and version:
            self._big_endian()
        if version not in (2, 3):
            self._fail("GGUF version", value=version, limit="2 and 3", remedy=_CONVERT, at=4)
        num_tensors = self._u64("number of tensors")
        num_entries = self._u64("number of metadata entries")
        # The shortest entry takes 14 bytes (key of one byte, one-byte value), the shortest tensor 33.
        left = self.end - self.pos
        for what, count, limit, at in (
            ("tensors", num_tensors, min(MAX_TENSORS, left // 33), 8),
            ("metadata entries", num_entries, min(MAX_ENTRIES, left // 14), 16),
        ):
            if count > limit:
                self._fail(f"number of {what}", value=count, limit=limit, at=at, remedy=_AGAIN)
        return num_tensors, num_entries

    def _value(self, key: str) -> Any:
        """The value of an entry; `key` for messages."""
        kind = self._u32(f"type of {key}")
        if kind == _STRING:
            return self._string(f"value of {key}", MAX_HEADER_BYTES)
        if kind in _SCALARS:
            value = self._numbers(kind, 1, key)[0]
            return value.item()
        if kind != _ARRAY:
            self._fail(f"unknown type of metadata value {key}", value=kind, limit="0 to 12", at=self.pos - 4)
        kind = self._u32(f"element type of {key}")
        count = self._u64(f"length of {key}")
        if kind == _STRING:
            return self._strings(count, key)
        if kind in _SCALARS:
            return self._numbers(kind, count, key)
        if kind == _ARRAY:
            self._fail(f"{key} is an array of arrays, which no model uses", at=self.pos - 12)
        self._fail(f"unknown element type of array {key}", value=kind, limit="0 to 12", at=self.pos - 12)

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray:
        dtype = _SCALARS[kind]
        start = self._take(count * dtype.itemsize, f"{count} values of {key}")
        values = np.frombuffer(self.buffer[start : self.pos], dtype=dtype)
        if kind == _BOOL:
            if count and values.max() > 1:
                self._fail(f"boolean {key} is neither 0 nor 1", value=int(values.max()), at=start)
            return values.view(np.bool_)
        return values

    def _strings(self, count: int, key: str) -> list[str]:
        """`count` strings. A vocabulary has hundreds of thousands, most of them a few bytes long, so whole
        windows are cut at once where that is provably the same as reading one by one."""
        if count > (self.end - self.pos) // 8:
            self._short(8 * count, f"{count} strings of {key}")
        out: list[str] = []
        one_by_one = 1
        while len(out) < count:
            quick = self._short_strings(count - len(out))
            out += quick
            # where windows do not help, try them ever more rarely
            one_by_one = 1 if len(quick) > min(one_by_one, 1024) else 2 * one_by_one
            out += self._some_strings(min(one_by_one, count - len(out)), key, len(out))
        return out

    def _some_strings(self, count: int, key: str, index: int) -> list[str]:
        """`count` strings one by one, from number `index` of array `key` on."""
        out: list[str] = []
        buffer, end, pos = self.buffer, self.end, self.pos
        try:
            for _ in range(count):
                start = pos + 8
                pos = start + _U64.unpack_from(buffer, pos)[0]
                if pos > end:
                    break
                out.append(buffer[start:pos].decode("utf-8"))
                self.pos = pos
        except (struct.error, UnicodeDecodeError):
            pass
        if len(out) < count:  # read the bad one again, to say what is wrong with it
            self._string(f"{key}[{index + len(out)}]", MAX_HEADER_BYTES)
            raise AssertionError("unreachable")
        return out

    def _short_strings(self, limit: int) -> list[str]:
        """As many of the next `limit` strings as can be cut at once: perhaps none.

        A string of 1 to 255 bytes starts with its length and seven zeros. If the places that look so form an
        unbroken chain (each is where the one before ends), they are the strings' starts. Then each start
        becomes eight zeros, and, if the text has no zeros of its own, one decode and one split give the
        strings.
        """
        window = np.frombuffer(self.buffer[self.pos : min(self.pos + _WINDOW, self.end)], dtype=np.uint8)
        zero = window == 0
        zero = zero[:-1] & zero[1:]
        zero = zero[:-2] & zero[2:]
        zero = zero[:-3] & zero[3:]  # seven zeros from here on
        starts = np.flatnonzero(zero) - 1
        if len(starts) < 2 or starts[0] != 0:
            return []
        chained = np.diff(starts) == window[starts[:-1]] + np.int64(8)
        num = min(limit, len(chained) if chained.all() else int(chained.argmin()))
        end = int(starts[num])
        text = window[:end].copy()
        text[starts[:num]] = 0
        if num == 0 or end - np.count_nonzero(text) != 8 * num:
            return []
        try:
            strings: list[str] = text.tobytes().decode("utf-8").split(_SEPARATOR)
        except UnicodeDecodeError:
            return []  # the slow way finds the culprit
        self.pos += end
        return strings[1:]

    def _index_entry(self) -> tuple[int, TensorEntry]:
        start = self.pos
        name = self._string("tensor name", MAX_TENSOR_NAME_BYTES)
        label = quoted(name)
        num_dims = self._u32(f"number of dimensions of {label}")
        if not 1 <= num_dims <= MAX_DIMS:
            self._fail(f"dimensions of tensor {label}", value=num_dims, limit=f"1 to {MAX_DIMS}", at=start)
        shape = tuple(self._u64(f"shape of {label}") for _ in range(num_dims))[::-1]
        kind = self._u32(f"type of {label}")
        offset = self._u64(f"offset of {label}")
        if kind not in _DTYPES:
            dtype = _UNSUPPORTED_DTYPES.get(kind, f"number {kind}, unknown")
            raise unsupported_dtype(dtype, f" (tensor {label} of {self.path})")
        dtype = _DTYPES[kind]
        weights, block_bytes = BLOCKS[dtype]
        count = 1
        for dim in shape:
            count *= dim
        if count == 0 or shape[-1] % weights:
            self._fail(
                f"shape of {dtype} tensor {label}",
                value=list(shape),
                limit=f"no dimension 0, rows of a multiple of {weights}",
                at=start,
            )
        return start, TensorEntry(name, shape, dtype, offset, count // weights * block_bytes)

    def _check_index(
        self, index: list[tuple[int, TensorEntry]], data_start: int, alignment: int
    ) -> list[TensorEntry]:
        """Make the offsets count from the start of the file; refuse what lies outside or overlaps."""
        room = max(self.size - data_start, 0)
        tensors: dict[str, TensorEntry] = {}
        for start, t in index:
            if t.name in tensors:
                self._fail(f"tensor {quoted(t.name)} appears twice", at=start)
            if t.offset % alignment:
                what = f"offset of tensor {quoted(t.name)}"
                self._fail(what, value=t.offset, limit=f"multiples of {alignment}", at=start)
            if t.offset + t.num_bytes > room:
                self._fail(
                    f"end of {t.dtype} tensor {quoted(t.name)} {list(t.shape)} in the data",
                    value=t.offset + t.num_bytes,
                    limit=f"{room} bytes of data in the file",
                    at=start,
                    remedy=_AGAIN,
                )
            tensors[t.name] = TensorEntry(t.name, t.shape, t.dtype, data_start + t.offset, t.num_bytes)
        by_offset = sorted(tensors.values(), key=lambda t: t.offset)
        for one, two in itertools.pairwise(by_offset):
            if one.offset + one.num_bytes > two.offset:
                self._fail(f"tensors {quoted(one.name)} and {quoted(two.name)} overlap", at=two.offset)
        return list(tensors.values())

    def _take(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes`; the position before."""
        start = self.pos
        if num_bytes > self.end - start:
            self._short(num_bytes, what)
        self.pos = start + num_bytes
        return start

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self._take(8, what))[0]
        return value

    def _string(self, what: str, limit: int) -> str:
        length = self._u64(f"length of {what}")
        if length > limit:
            self._fail(f"length of {what}", value=length, limit=limit, at=self.pos - 8)
        start = self._take(length, what)
        try:
            return self.buffer[start : self.pos].decode("utf-8")
        except UnicodeDecodeError as error:
            bad = bytes(error.object[error.start : error.start + 8])
            self._fail(f"{what} is not UTF-8", value=bad, at=start + error.start)

    def _short(self, num_bytes: int, what: str) -> NoReturn:
        left = self.end - self.pos
        if self.end < self.size:
            self._fail(
                f"bytes of {what}",
                value=num_bytes,
                limit=f"{left}: a header of {MAX_HEADER_BYTES} bytes in all",
            )
        self._fail(
            f"the file ends early: bytes of {what}", value=num_bytes, limit=f"{left} left", remedy=_AGAIN
        )

    def _big_endian(self) -> NoReturn:
        self._fail("the file is big-endian", limit="little-endian", remedy=_CONVERT, at=4)

    def _fail(
        self,
        what: str,
        *,
        value: Any = None,
        limit: Any = None,
        remedy: str | None = None,
        at: int | None = None,
    ) -> NoReturn:
        where = f"{self.path}, byte {self.pos if at is None else at}"
        raise ModelFileError(f"{where}: {what}", value=value, limit=limit, remedy=remedy)
