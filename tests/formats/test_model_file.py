"""Opening a model, whatever its format."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from leafage.errors import LeafageError, ModelFileError, ModelNotFoundError
from leafage.formats import open_model
from leafage.formats.dequantize import dequantize
from leafage.formats.mapped_file import MappedFile


@pytest.fixture
def gguf_file(tmp_path):
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_tensor("output_norm.weight", np.arange(4, dtype=np.float32))
    writer.add_tensor("token_embd.weight", np.arange(8, dtype=np.float16).reshape(2, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def hf_folder(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text", "hidden_size": 4}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 106]}))
    save_file({"model.norm.weight": np.ones(4, np.float32)}, folder / "model.safetensors")
    return folder


def test_gguf(gguf_file):
    with open_model(gguf_file) as model:
        assert (model.format, model.architecture, model.path) == ("gguf", "llama", gguf_file)
        assert model.metadata["llama.block_count"] == 2
        assert (model.folder, model.generation_config, model.tokenizer_config) == (None, None, None)
        assert list(model.tensors) == ["output_norm.weight", "token_embd.weight"]
        assert model.num_bytes == 4 * 4 + 8 * 2
        tensor = model.tensors["token_embd.weight"]
        assert (tensor.name, tensor.shape, tensor.dtype) == ("token_embd.weight", (2, 4), "F16")
        assert tensor.data.dtype == np.uint8 and tensor.data.shape == (16,)
        with pytest.raises(ValueError, match="read-only"):
            tensor.data[0] = 1
        values = dequantize(tensor.dtype, tensor.data, tensor.shape)
        assert values.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_folder(hf_folder):
    with open_model(str(hf_folder)) as model:
        assert (model.format, model.architecture, model.path) == ("hf", "gemma3_text", hf_folder)
        assert model.folder == hf_folder
        assert model.metadata["hidden_size"] == 4
        assert model.generation_config == {"eos_token_id": [1, 106]}
        assert model.tokenizer_config is None
        tensor = model.tensors["model.norm.weight"]
        assert dequantize(tensor.dtype, tensor.data, tensor.shape).tolist() == [1, 1, 1, 1]


def test_views_outlive_close(gguf_file):
    model = open_model(gguf_file)
    tensor = model.tensors["output_norm.weight"]
    model.close()
    model.close()
    del model
    assert dequantize(tensor.dtype, tensor.data, tensor.shape).tolist() == [0, 1, 2, 3]


def test_release_leaves_the_view_readable(gguf_file):
    with open_model(gguf_file) as model:
        for tensor in model.tensors.values():
            before = tensor.data.tobytes()
            model.release(tensor)
            assert tensor.data.tobytes() == before


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_release_gives_memory_back(tmp_path):
    size = 64 << 20
    path = tmp_path / "big"
    path.write_bytes(b"\1" * size)
    code = f"""
import pathlib
from leafage.formats.mapped_file import MappedFile
def resident():
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(l.split()[1]) << 10 for l in lines if l.startswith("Rss"))
file = MappedFile(pathlib.Path({str(path)!r}))
view = file.view(100, {size} - 100)
before = resident()
assert view[::4096].sum() > 0
touched = resident()
file.release(100, {size} - 100)
after = resident()
assert touched - before > {size} * 0.9, (before, touched)
assert after - before < {size} * 0.1, (before, after)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_paths_without_a_model(tmp_path, gguf_file, hf_folder):
    def check(path, match, error=ModelFileError):
        with pytest.raises(error, match=match):
            open_model(path)

    check(tmp_path / "absent.gguf", "no such file", ModelNotFoundError)
    check("", "path of the model is empty", ModelNotFoundError)
    check("a\0b", "cannot be read", LeafageError)
    check(tmp_path / ("x" * 5000), "cannot be read")
    check(gguf_file / "inside", "no such file", ModelNotFoundError)
    check("~no-such-user-at-all/m.gguf", "no such file", ModelNotFoundError)
    check(hf_folder / "model.safetensors", "holds weights alone")
    empty = tmp_path / "empty"
    empty.mkdir()
    check(empty, "no config.json")
    os.mkfifo(tmp_path / "pipe.gguf")
    check(tmp_path / "pipe.gguf", "is a pipe, not a file")
    shutil.copy(hf_folder / "config.json", tmp_path / "config.gguf")
    check(tmp_path / "config.gguf", "not a GGUF file")


@pytest.mark.parametrize("config", ["{}", '{"model_type": 3}', '{"model_type": ""}'])
def test_architecture_must_be_named(hf_folder, config):
    (hf_folder / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=r"does not name its architecture.*model_type"):
        open_model(hf_folder)


def test_nothing_stays_open_after_a_refusal(tmp_path, hf_folder):
    (hf_folder / "model.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    before = sorted(os.listdir("/proc/self/fd"))
    maps = Path("/proc/self/maps").read_text().count(str(tmp_path))
    for path in (hf_folder, tmp_path / "bad.gguf"):
        with pytest.raises(ModelFileError):
            open_model(path)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == maps == 0


def test_mapped_file_views_and_close(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    file = MappedFile(path)
    view = file.view(10, 5)
    assert view.tolist() == [10, 11, 12, 13, 14]
    file.release(10, 5)
    file.release(0, 0)
    file.close()
    assert view.tolist() == [10, 11, 12, 13, 14]
