"""The GGUF reader: against files that the `gguf` package writes, and against files nobody should write."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.errors import ModelFileError, ModelNotFoundError, UnsupportedError
from leafage.formats import gguf as reader
from leafage.formats.gguf import read_gguf
from tests.formats.gguf_bytes import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    Q4_0,
    STRING,
    U8,
    U32,
    array,
    entry,
    header,
    padded,
    read,
    string,
    tensor,
)


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def refuse(write):
    def refuse(content: bytes, match: str, error: type = ModelFileError) -> None:
        with pytest.raises(error, match=match) as caught:
            read_gguf(write(content))
        assert len(str(caught.value)) < 1000

    return refuse


# What is right is read right


@pytest.mark.parametrize("alignment", [32, 64, 8])
def test_reads_what_the_gguf_package_writes(tmp_path, alignment):
    rng = np.random.default_rng(0)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    scalars = {
        "uint8": 255,
        "int8": -128,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float32": 0.5,
        "float64": 0.1,
        "bool": True,
        "string": "héllo \U0001f600\0 end",
    }
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.strings", ["a", "", "ü" * 200, "long" * 100, "\0\0\0\0\0\0\0\0\0"])
    writer.add_array("x.floats", [0.25, -1.5])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.bools", [True, False])
    expected = {}
    for name, dtype, shape in (
        ("a", "F32", (3,)),
        ("b", "F16", (2, 5)),
        ("c", "Q4_0", (3, 64)),
        ("d", "Q6_K", (2, 3, 256)),
        ("e", "MXFP4", (1, 32)),
    ):
        weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
        data = np.frombuffer(rng.bytes(int(np.prod(shape)) // weights * size), np.uint8)
        rows = data.reshape(*shape[:-1], -1)
        raw = None if dtype in ("F32", "F16") else gguf.GGMLQuantizationType[dtype]
        writer.add_tensor(name, rows.view({"F32": "f4", "F16": "f2"}.get(dtype, "u1")), raw_dtype=raw)
        expected[name] = (shape, dtype, data.tobytes())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    metadata, tensors = read(path)
    assert {k: metadata[f"x.{k}"] for k in scalars} == scalars
    assert isinstance(metadata["x.bool"], bool) and type(metadata["x.uint8"]) is int
    assert metadata["x.strings"] == ["a", "", "ü" * 200, "long" * 100, "\0" * 9]
    assert metadata["x.floats"].tolist() == [0.25, -1.5] and metadata["x.floats"].dtype == np.float32
    assert metadata["x.ints"].tolist() == [1, -2, 3]
    assert metadata["x.bools"].tolist() == [True, False]
    assert {n: (t.shape, t.dtype, data) for n, (t, data) in tensors.items()} == expected


def test_version_2_reads_as_version_3(write):
    content = padded(header([ARCHITECTURE], [tensor("t", [4, 2], 0, 0)], version=2), b"x" * 32)
    metadata, tensors = read(write(content))
    assert metadata == {"general.architecture": "llama"}
    assert tensors["t"][0].shape == (2, 4) and tensors["t"][1] == b"x" * 32


def test_vocabulary_without_tensors_needs_no_data_section(write):
    metadata, tensors = read(write(header([ARCHITECTURE])))
    assert metadata["general.architecture"] == "llama" and tensors == {}


# Any text, in any mixture of lengths, comes back as it was: the fast way agrees with the plain one.
_TEXT = st.one_of(
    st.text(max_size=6),
    st.text(alphabet="\0a\x01\x08", max_size=24),
    st.integers(0, 700).map(lambda n: "x" * n),
)


@given(st.lists(_TEXT, max_size=40), st.integers(1, 40))
def test_arrays_of_strings(tmp_path_factory, texts, repeat):
    texts = texts * repeat
    path = tmp_path_factory.mktemp("strings") / "m.gguf"
    values = array(STRING, len(texts), b"".join(map(string, texts)))
    # the bytes after the array look like one more string
    path.write_bytes(header([entry("a", ARRAY, values), entry("b", STRING, string("end"))]))
    metadata, _ = read(path)
    assert metadata == {"a": texts, "b": "end"}


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=12), st.integers(0, 300))
def test_invalid_utf8_is_found_where_it_is(tmp_path_factory, raw, before):
    good = b"".join(string(f"t{i}") for i in range(before))
    content = header([entry("a", ARRAY, array(STRING, before + len(raw), good + b"".join(map(string, raw))))])
    path = tmp_path_factory.mktemp("utf8") / "m.gguf"
    path.write_bytes(content)
    try:
        expected = [f"t{i}" for i in range(before)] + [b.decode() for b in raw]
    except UnicodeDecodeError as error:
        first = next(i for i, b in enumerate(raw) if b == error.object)
        with pytest.raises(ModelFileError, match=rf"'a'\[{before + first}\] is not UTF-8"):
            read(path)
    else:
        assert read(path)[0] == {"a": expected}


# What is wrong is refused, and says what, where and how much


def test_not_gguf(refuse):
    refuse(b"\x7fELF" + b"\0" * 100, r"byte 0: not a GGUF file.*ELF.*fetch it again")
    refuse(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer")
    refuse(b"GG", "not a GGUF file")
    refuse(b"GGUF", r"ends early.*version.*got 4; limit: 0 left")


def test_versions(refuse):
    refuse(header([ARCHITECTURE], version=1), r"byte 4: GGUF version; got 1; limit: 2 and 3")
    refuse(header([ARCHITECTURE], version=4), "version; got 4")
    refuse(header([ARCHITECTURE], version=0), "version; got 0")


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_said_by_name(refuse, version):
    refuse(b"GGUF" + struct.pack(">IQQ", version, 1, 1) + b"\0" * 64, "the file is big-endian")


def test_big_endian_of_the_gguf_package(tmp_path):
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="big-endian"):
        read_gguf(path)


@pytest.mark.parametrize("count", [2, 1000, 2**31, 2**63, 2**64 - 1])
def test_huge_counts(refuse, count):
    refuse(b"GGUF" + struct.pack("<IQQ", 3, count, 0), rf"byte 8: number of tensors; got {count}; limit: 0")
    refuse(b"GGUF" + struct.pack("<IQQ", 3, 0, count), rf"byte 16: number of metadata entries; got {count}")
    refuse(header([entry("k", STRING, struct.pack("<Q", count))]), r"bytes of value of 'k'|length of value")
    refuse(header([entry("k", ARRAY, array(STRING, count, b""))]), "strings of 'k'")
    refuse(header([entry("k", ARRAY, array(U32, count, b""))]), "values of 'k'")


def test_unknown_types(refuse):
    refuse(header([entry("k", 13, b"\0" * 8)]), r"unknown type of metadata value 'k'; got 13; limit: 0 to 12")
    refuse(header([entry("k", ARRAY, array(99, 1, b"\0" * 8))]), r"element type of array 'k'; got 99")
    refuse(header([entry("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\0")))]), "'k' is an array of arrays")
    refuse(header([entry("k", BOOL, b"\2")]), "boolean 'k' is neither 0 nor 1; got 2")


def test_duplicates(refuse):
    refuse(header([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' appears twice")
    twice = [tensor("t", [8], 0, 0), tensor("t", [8], 0, 32)]
    refuse(padded(header([ARCHITECTURE], twice), b"\0" * 64), "tensor 't' appears twice")


def test_invalid_utf8_in_keys_and_names(refuse):
    refuse(header([entry(b"k\xff", U8, b"\0")]), r"byte 33: metadata key is not UTF-8; got b'\\xff'")
    refuse(header([entry("k", STRING, string(b"\xc3"))]), "value of 'k' is not UTF-8")


def test_alignment(refuse, write):
    for bad in (0, 3, 33):
        refuse(header([entry("general.alignment", U32, struct.pack("<I", bad))]), f"got {bad}.*powers of two")
    refuse(header([entry("general.alignment", STRING, string("32"))]), "general.alignment")
    refuse(header([entry("general.alignment", ARRAY, array(U32, 1, b"\x20\0\0\0"))]), "general.alignment")
    refuse(header([entry("general.alignment", BOOL, b"\1")]), "general.alignment")
    huge = entry("general.alignment", U32, struct.pack("<I", 1 << 31))
    refuse(padded(header([huge], [tensor("t", [8], 0, 0)]), b"\0" * 32), r"got 32; limit: 0 bytes of data")
    off = [tensor("t", [8], 0, 16)]
    refuse(padded(header([], off), b"\0" * 64), r"offset of tensor 't'; got 16; limit: multiples of 32")


def test_tensors_outside_the_file(refuse):
    refuse(padded(header([], [tensor("t", [8], 0, 0)]), b"\0" * 31), r"got 32; limit: 31 bytes of data")
    refuse(padded(header([], [tensor("t", [8], 0, 2**64 - 32)]), b"\0" * 32), f"got {2**64}")
    refuse(padded(header([], [tensor("t", [2**62, 2**62], 0, 0)]), b"\0" * 32), f"got {2**126}")


def test_overlapping_tensors(refuse):
    index = [tensor("one", [16], 0, 0), tensor("two", [8], 0, 32)]
    refuse(padded(header([], index), b"\0" * 64), "'one' and 'two' overlap")
    refuse(padded(header([], index[::-1]), b"\0" * 64), "'one' and 'two' overlap")


def test_shapes(refuse):
    refuse(padded(header([], [tensor("t", [0], 0, 0)])), r"shape of F32 tensor 't'; got \[0\]")
    refuse(
        padded(header([], [tensor("t", [], 0, 0)]), b"\0" * 32),
        "dimensions of tensor 't'; got 0; limit: 1 to 4",
    )
    refuse(padded(header([], [tensor("t", [1] * 5, 0, 0)]), b"\0" * 32), "got 5; limit: 1 to 4")
    many = string("t") + struct.pack("<I", 2**32 - 1) + b"\0" * 64
    refuse(header([], [many]), f"got {2**32 - 1}; limit: 1 to 4")
    refuse(padded(header([], [tensor("t", [48, 2], Q4_0, 0)]), b"\0" * 64), "rows of a multiple of 32")


@pytest.mark.parametrize(
    "kind, name", [(16, "IQ2_XXS"), (34, "TQ1_0"), (9, "Q8_1"), (28, "F64"), (26, "I32"), (999, "number 999")]
)
def test_tensor_types_are_refused_by_name(refuse, kind, name):
    content = padded(header([], [tensor("blk.0.x", [256], kind, 0)]), b"\0" * 256)
    refuse(content, rf"{name}.*'blk\.0\.x'.*MXFP4", UnsupportedError)


def test_type_numbers_are_those_of_the_gguf_package():
    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    for number, name in known.items():
        assert (reader._DTYPES | reader._UNSUPPORTED_DTYPES).get(number) == name


def test_long_names_do_not_flood_the_message(refuse):
    refuse(header([entry("k" * 60_000, 13, b"")]), "unknown type")
    refuse(header([string("k" * 70_000)]), "length of metadata key; got 70000; limit: 65535")
    refuse(header([], [tensor("n" * 2000, [1], 0, 0)]), "length of tensor name; got 2000; limit: 1024")


def test_paths(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="a folder, not a file"):
        read_gguf(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelFileError, match="empty"):
        read_gguf(tmp_path / "empty.gguf")
    with pytest.raises(ModelFileError, match="a device, not a file"):
        read_gguf(Path("/dev/null"))


def test_header_has_a_ceiling(monkeypatch, refuse):
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 4096)
    long = [entry(k, STRING, string("x" * 3000)) for k in "ab"]
    refuse(header(long) + b"\0" * 5000, r"value of 'b'; got 3000; limit: 10..: a header of 4096 bytes in all")
    refuse(header([long[0], entry("b", STRING, string("x" * 5000))]), "length of value of 'b'; got 5000")


# Split files


def split(folder: Path, parts: list[dict], counts: dict | None = None) -> list[Path]:
    """Write parts as llama-gguf-split does: metadata in the first, split.* in all."""
    total = len(parts)
    paths = []
    for number, names in enumerate(parts):
        declared = {"split.no": number, "split.count": total, "split.tensors.count": sum(map(len, parts))}
        declared |= counts or {}
        entries = [ARCHITECTURE] if number == 0 else []
        entries += [entry(k, 2, struct.pack("<H", v)) for k, v in declared.items()]
        index = [tensor(name, [8], 0, 32 * i) for i, name in enumerate(names)]
        path = folder / f"m-{number + 1:05d}-of-{total:05d}.gguf"
        path.write_bytes(padded(header(entries, index), b"".join(bytes([v]) * 32 for v in names.values())))
        paths.append(path)
    return paths


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_part_opens_the_whole_split_model(tmp_path, which):
    paths = split(tmp_path, [{"a": 1, "b": 2}, {"c": 3}, {"d": 4}])
    metadata, tensors = read(paths[which])
    assert metadata["general.architecture"] == "llama"
    assert {n: data for n, (_, data) in tensors.items()} == {
        n: bytes([i]) * 32 for i, n in enumerate("abcd", 1)
    }


def test_split_by_the_gguf_package(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(8, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata, tensors = read(tmp_path / "m-00002-of-00003.gguf")
    assert metadata["general.architecture"] == "llama" and len(tensors) == 5
    assert np.frombuffer(tensors["t4"][1], np.float32).tolist() == [4.0] * 8


def test_split_refusals(tmp_path):
    def check(match, error=ModelFileError, path=None):
        with pytest.raises(error, match=match):
            read_gguf(path or tmp_path / "m-00001-of-00002.gguf")

    paths = split(tmp_path, [{"a": 1}, {"b": 2}])
    paths[1].rename(tmp_path / "away")
    check("part 2 of 2 of the split model is missing.*m-00002-of-00002")
    check("no such file", ModelNotFoundError, paths[1])
    check("name says part 3 of 2", path=tmp_path / "m-00003-of-00002.gguf")
    check("one of 2 parts", path=tmp_path / "away")
    split(tmp_path, [{"a": 1}, {"a": 2}])
    check("'a' is also in part m-00001-of-00002.gguf")
    split(tmp_path, [{"a": 1}, {"b": 2}], {"split.tensors.count": 3})
    check("wrong number of tensors; got 2; limit: 3")
    split(tmp_path, [{"a": 1}, {"b": 2}], {"split.no": 0})
    check("split.no 0 of split.count 2; limit: 1 of 2")
    (tmp_path / "odd.gguf").write_bytes(header([entry("split.count", ARRAY, array(U32, 2, b"\0" * 8))]))
    check("not a number", path=tmp_path / "odd.gguf")


# Real files


@pytest.mark.real_model
@pytest.mark.parametrize(
    "fixture, milliseconds, num_tokens", [("smollm2_path", 50, 49152), ("gemma3_path", 150, 262144)]
)
def test_t05_real_vocabularies_open_fast(request, fixture, milliseconds, num_tokens):
    path = request.getfixturevalue(fixture)
    times = []
    for _ in range(5):
        start = time.process_time()
        metadata, parts = read_gguf(path)
        times.append(time.process_time() - start)
        for file, _ in parts:
            file.close()
    assert len(metadata["tokenizer.ggml.tokens"]) == num_tokens
    assert min(times) * 1000 < milliseconds


@pytest.mark.real_model
def test_real_file_equals_the_gguf_package(smollm2_path):
    oracle = gguf.GGUFReader(smollm2_path)
    metadata, tensors = read(smollm2_path)
    for key, field in oracle.fields.items():
        if key.startswith("GGUF."):
            continue
        expected = field.contents()
        got = metadata[key]
        if isinstance(expected, list):
            assert list(got) == expected, key
        else:
            assert got == expected, key
    assert list(tensors) == [t.name for t in oracle.tensors]
    for t in oracle.tensors:
        mine, data = tensors[t.name]
        assert mine.dtype == t.tensor_type.name and mine.offset == t.data_offset
        assert list(mine.shape) == t.shape.tolist()[::-1]
        assert data == t.data.tobytes()
