"""SwapStore: one block's K/V in each slot, in host memory or in a file. Implements `core.SwapStore`.

What comes back is checked: a checksum of every block is kept in memory. A slot that could not be written, or
whose content changed, answers False, and the core computes its tokens again.
"""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

import numpy as np

from leafage.errors import InvalidParameterError


class HostSwapStore:
    """Slots in host memory. Pages are taken from the system when a slot is first used.

    Args:
        num_slots: blocks that fit.
        block_bytes: bytes of a block.
    """

    def __init__(self, num_slots: int, block_bytes: int) -> None:
        self._memory = np.empty((num_slots, block_bytes), np.uint8)
        self._checksums = [0] * num_slots
        self._checksum = Checksum(block_bytes)
        self.num_failures = 0
        """Transfers that went wrong."""

    def save(self, slot: int, block: memoryview) -> bool:
        self._memory[slot] = block
        self._checksums[slot] = self._checksum.of(self._memory[slot])
        return True

    def load(self, slot: int, block: memoryview) -> bool:
        if self._checksum.of(self._memory[slot]) != self._checksums[slot]:
            self.num_failures += 1
            return False
        np.frombuffer(block, np.uint8)[:] = self._memory[slot]
        return True


class FileSwapStore:
    """Slots in a file, which has no name any more once it is open: nothing is left behind by a crash.

    Args:
        path: a file that does not exist yet; its folder says on which disk.
        num_slots: blocks that fit; the room is reserved at once.
        block_bytes: bytes of a block.

    Raises:
        InvalidParameterError: the file exists, cannot be made, or the disk has not so much room.
    """

    def __init__(self, path: str | Path, num_slots: int, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._checksums: list[int | None] = [None] * num_slots
        self._checksum = Checksum(block_bytes)
        self.num_failures = 0
        num_bytes = num_slots * block_bytes
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            remedy = "name a new file in a folder that can be written"
            raise InvalidParameterError(
                f"swap_path cannot be made: {error.strerror}", value=str(path), remedy=remedy
            ) from error
        os.unlink(path)
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            if num_bytes:
                os.posix_fallocate(self._file, 0, num_bytes)
        except OSError as error:
            self.close()
            remedy = "lower swap_bytes, or name a file on another disk"
            raise InvalidParameterError(
                f"swap_path has no room: {error.strerror}", value=f"{num_bytes} bytes", remedy=remedy
            ) from error

    def save(self, slot: int, block: memoryview) -> bool:
        self._checksums[slot] = None
        try:
            self._write(slot * self._block_bytes, block)
        except OSError:
            self.num_failures += 1
            return False
        self._checksums[slot] = self._checksum.of(np.frombuffer(block, np.uint8))
        return True

    def load(self, slot: int, block: memoryview) -> bool:
        try:
            self._read(slot * self._block_bytes, block)
            intact = self._checksum.of(np.frombuffer(block, np.uint8)) == self._checksums[slot]
        except OSError:
            intact = False
        self.num_failures += not intact
        return intact

    def close(self) -> None:
        """Give the room back to the disk; it also goes with the object."""
        self._close()

    def _write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._file, data, offset)
            if count == 0:
                raise OSError(errno.ENOSPC, "nothing was written")
            data, offset = data[count:], offset + count

    def _read(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.preadv(self._file, [data], offset)
            if count == 0:
                raise OSError(errno.EIO, "the file ended early")
            data, offset = data[count:], offset + count


class Checksum:
    """A sum of 64-bit words times odd numbers, modulo 2^64: no change of one word leaves it as it was."""

    def __init__(self, num_bytes: int) -> None:
        self._num_words = num_bytes // 8
        words = np.arange(self._num_words + 1, dtype=np.uint64)
        self._factors = words * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)

    def of(self, data: np.ndarray) -> int:
        """Of uint8 [num_bytes]."""
        end = self._num_words * 8
        words = data[:end].view(np.uint64)
        rest = int.from_bytes(data[end:].tobytes(), "little")
        total = int(np.dot(words, self._factors[:-1])) + rest * int(self._factors[-1])
        return total & (1 << 64) - 1
