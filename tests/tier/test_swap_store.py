from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leafage.errors import InvalidParameterError
from leafage.tier.swap_store import Checksum, FileSwapStore, HostSwapStore

BYTES = 1000  # no multiple of eight
Make = Callable[[], HostSwapStore | FileSwapStore]


@pytest.fixture(params=["host", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> HostSwapStore | FileSwapStore:
    return HostSwapStore(3, BYTES) if request.param == "host" else FileSwapStore(tmp_path / "swap", 3, BYTES)


def _block(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, BYTES).astype(np.uint8)


def test_p20_what_went_out_comes_back(store: HostSwapStore | FileSwapStore) -> None:
    for slot in (2, 0, 1, 0):
        assert store.save(slot, _block(slot).data)
    for slot in range(3):
        back = np.zeros(BYTES, np.uint8)
        assert store.load(slot, back.data)
        assert (back == _block(slot)).all()
    assert store.num_failures == 0


def test_p21_a_flipped_bit_is_no_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostSwapStore(1, BYTES)
    host.save(0, _block(0).data)
    host._memory[0, 999] ^= 1
    file = FileSwapStore(tmp_path / "swap", 1, BYTES)
    file.save(0, _block(0).data)
    os.pwrite(file._file, b"\x00\x00", 500)
    for store in (host, file):
        assert not store.load(0, np.zeros(BYTES, np.uint8).data)
        assert store.num_failures == 1


@pytest.mark.parametrize("fault", ["short", "full", "nothing"])
def test_p21_a_short_write_or_a_full_disk_is_no_hit(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileSwapStore(tmp_path / "swap", 2, BYTES)
    assert store.save(1, _block(1).data)
    real = os.pwrite

    def broken(file: int, data: memoryview, offset: int) -> int:
        if fault == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:7], offset) if fault == "short" and offset == 0 else 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        assert not store.save(0, _block(0).data)
    assert not store.load(0, np.zeros(BYTES, np.uint8).data)
    assert store.load(1, np.zeros(BYTES, np.uint8).data)
    assert store.num_failures == 2


def test_a_write_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileSwapStore(tmp_path / "swap", 1, BYTES)
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, data[:300], offset))
    monkeypatch.setattr(os, "preadv", lambda file, data, offset: preadv(file, [data[0][:300]], offset))
    assert store.save(0, _block(0).data)
    back = np.zeros(BYTES, np.uint8)
    assert store.load(0, back.data)
    assert (back == _block(0)).all()


def test_p21_the_file_leaves_nothing_behind(tmp_path: Path) -> None:
    store = FileSwapStore(tmp_path / "swap", 2, BYTES)
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_a_path_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "taken"
    taken.write_bytes(b"precious")
    with pytest.raises(InvalidParameterError, match="swap_path cannot be made: File exists"):
        FileSwapStore(taken, 1, BYTES)
    assert taken.read_bytes() == b"precious"
    with pytest.raises(InvalidParameterError, match="No such file"):
        FileSwapStore(tmp_path / "missing" / "swap", 1, BYTES)

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InvalidParameterError, match=f"no room.*{2 * BYTES} bytes"):
        FileSwapStore(tmp_path / "swap", 2, BYTES)


def test_every_single_change_alters_the_checksum() -> None:
    checksum = Checksum(20)
    data = np.arange(20, dtype=np.uint8)
    before = checksum.of(data)
    for byte in range(20):
        for bit in range(8):
            data[byte] ^= 1 << bit
            assert checksum.of(data) != before
            data[byte] ^= 1 << bit
    data[:16] = np.roll(data[:16], 8)  # words change places
    assert checksum.of(data) != before
