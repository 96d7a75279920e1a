"""The safetensors reader: against files that the library writes, and against corrupt ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from leafage.errors import ModelFileError, ModelNotFoundError, UnsupportedError
from leafage.formats.mapped_file import MappedFile
from leafage.formats.safetensors import read_folder, read_header, read_json


def encode(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def spec(dtype: str, shape: list[int], start: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def read(path: Path):
    file = MappedFile(path)
    tensors = {t.name: (t.dtype, t.shape, bytes(file.view(t.offset, t.num_bytes))) for t in read_header(file)}
    file.close()
    return tensors


@pytest.fixture
def refuse(tmp_path):
    def refuse(content: bytes, match: str, error: type = ModelFileError) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        with pytest.raises(error, match=match) as caught:
            read(path)
        assert len(str(caught.value)) < 1000

    return refuse


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def test_reads_what_the_library_writes(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((4, 2, 2)).astype(np.float16),
        "i64": np.arange(3),
        "scalar": np.array(2, np.float32),
        "none": np.zeros((0, 4), np.float32),
        "mask": np.array([True, False]),
    }
    save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})
    got = read(tmp_path / "a.safetensors")
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert got[name][1:] == (array.shape, array.tobytes())
    assert [got[n][0] for n in arrays] == ["F32", "F16", "I64", "F32", "F32", "BOOL"]


def test_bfloat16_as_raw_bytes(tmp_path):
    data = bytes(range(16))
    content = encode({"w": spec("BF16", [2, 4], 0, 16)}, data)
    [(name, oracle)] = safetensors.deserialize(content)
    assert (name, oracle["dtype"], oracle["shape"], bytes(oracle["data"])) == ("w", "BF16", [2, 4], data)
    (tmp_path / "a.safetensors").write_bytes(content)
    assert read(tmp_path / "a.safetensors") == {"w": ("BF16", (2, 4), data)}


def test_corrupt_headers(refuse):
    good = {"w": spec("F32", [2], 0, 8)}
    refuse(b"abc", "too short.*got 3")
    refuse(encode(good, b"\0" * 8, length=2**63), f"length of the header; got {2**63}; limit: ")
    refuse(encode(good, b"\0" * 8, length=100_000_001), "length of the header; got 100000001")
    refuse(encode(b"{nonsense"), "header is not JSON")
    refuse(encode(b"\xff\xfe{}"), "header is not JSON")
    refuse(encode(b"[" * 100_000), "header is not JSON")
    refuse(encode(b'{"a": ' + b"1" * 10_000 + b"}"), "not JSON|description of tensor 'a'")
    refuse(encode([1]), "not a JSON object")
    refuse(encode({"w": [1]}), "description of tensor 'w'")
    refuse(encode({"w": {"dtype": "F32"}}), "description of tensor 'w'")
    refuse(encode(b'{"w":' + json.dumps(good["w"]).encode() + b',"w":{}}'), "the name 'w' appears twice")
    refuse(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer")


def test_corrupt_tensors(refuse):
    data = b"\0" * 16
    refuse(encode({"w": spec("F32", [3], 0, 8)}, data), r"data_offsets of F32 tensor 'w' of shape \[3\]")
    refuse(encode({"w": spec("F32", [-2], 0, 8)}, data), "shape or data_offsets of tensor 'w'")
    refuse(encode({"w": spec("F32", [2.0], 0, 8)}, data), "shape or data_offsets")
    refuse(encode({"w": spec("F32", [True, 2], 0, 8)}, data), "shape or data_offsets")
    refuse(encode({"w": spec("F32", [2**61, 2**61], 0, 8)}, data), "12 bytes|bytes")
    refuse(encode({"w": spec("F32", [2], 8, 16)}, data), "'w' overlaps or leaves a hole")
    both = {"v": spec("F32", [2], 0, 8), "w": spec("F32", [2], 4, 12)}
    refuse(encode(both, data), "'w' overlaps")
    refuse(encode({"w": spec("F32", [2], 0, 8)}, b"\0" * 7), "bytes of a file with these tensors")
    refuse(encode({"w": spec("F32", [2], 0, 8)}, b"\0" * 9), "bytes of a file with these tensors")


@pytest.mark.parametrize("dtype", ["F64", "F8_E4M3", "F4", "Q4_0"])
def test_float_types_are_refused_by_name(refuse, dtype):
    refuse(encode({"w": spec(dtype, [8], 0, 8)}, b"\0" * 8), f"'w' has type {dtype}", UnsupportedError)


GOOD = encode(
    {"__metadata__": {"format": "pt"}}
    | {f"w{i}": spec("BF16", [2, 4], 16 * i, 16 * i + 16) for i in range(4)},
    bytes(64),
)


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_changed_bytes(tmp_path_factory, changes):
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(content)
    try:
        tensors = read(path)
    except (ModelFileError, UnsupportedError) as error:
        assert str(path) in str(error) and len(str(error)) < 1000
    else:
        assert all(
            len(data) == 2 * np.prod(shape) for dtype, shape, data in tensors.values() if dtype == "BF16"
        )


def test_every_truncation(tmp_path):
    path = tmp_path / "short.safetensors"
    for end in range(1, len(GOOD)):
        path.write_bytes(GOOD[:end])
        with pytest.raises(ModelFileError):
            read(path)


# Folders


def save(folder: Path, name: str, *tensors: str) -> None:
    save_file({t: np.full((2, 2), i, np.float32) for i, t in enumerate(tensors)}, folder / name)


def index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def names(folder: Path) -> list[str]:
    _, parts = read_folder(folder)
    for file, _ in parts:
        file.close()
    return sorted(t.name for _, tensors in parts for t in tensors)


def test_single_file(folder):
    save(folder, "model.safetensors", "a", "b")
    assert read_folder(folder)[0] == {"model_type": "llama"}
    assert names(folder) == ["a", "b"]


def test_single_file_of_another_name(folder):
    save(folder, "weights.safetensors", "a")
    assert names(folder) == ["a"]


def test_sharded(folder):
    save(folder, "model-1.safetensors", "a", "b", "unused")
    save(folder, "model-2.safetensors", "c")
    index(folder, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})
    assert names(folder) == ["a", "b", "c"]


def test_folder_refusals(folder):
    def check(match, error=ModelFileError):
        with pytest.raises(error, match=match):
            read_folder(folder)

    check("no weights in safetensors. Fetch the folder again")
    (folder / "pytorch_model.bin").touch()
    check("no weights in safetensors; got 'pytorch_model.bin'. Convert")
    save(folder, "x.safetensors", "a")
    save(folder, "y.safetensors", "a")
    check("several safetensors files")
    index(folder, {})
    check("no weight_map")
    index(folder, {"a": "../x.safetensors"})
    check("file of tensor 'a'; got '../x.safetensors'")
    index(folder, {"a": 3})
    check("file of tensor 'a'")
    index(folder, {"a": "z.safetensors"})
    check("z.safetensors is named in model.safetensors.index.json but is missing")
    index(folder, {"a": "x.safetensors", "b": "y.safetensors"})
    check("y.safetensors lacks tensors.*'b'")
    (folder / "config.json").write_text(
        '{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}'
    )
    check("quantized.*'awq'", UnsupportedError)
    (folder / "config.json").write_text("{")
    check("config.json is not JSON")
    (folder / "config.json").unlink()
    check("no config.json")
    (folder / "m.gguf").touch()
    check("Name the file itself: m.gguf")


def test_json_files(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": {"b": [1, 2.5, null, "ü"]}}')
    assert read_json(path) == {"a": {"b": [1, 2.5, None, "ü"]}}
    path.write_text("[]")
    with pytest.raises(ModelFileError, match="not a JSON object"):
        read_json(path)
    path.write_text('{"a": 1, "a": 2}')
    with pytest.raises(ModelFileError, match="'a' appears twice"):
        read_json(path)
    with pytest.raises(ModelNotFoundError):
        read_json(tmp_path / "absent.json")
