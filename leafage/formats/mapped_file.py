"""A file mapped read-only into memory, and where the tensors lie in it."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafage.errors import ModelFileError, ModelNotFoundError


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One line of a tensor index. `shape` in NumPy order; `offset` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    num_bytes: int


class MappedFile:
    """The bytes of a regular, non-empty file. Nothing is read until it is touched.

    Raises:
        ModelNotFoundError: there is no such path.
        ModelFileError: the path is not a regular file, is empty, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
                raise ModelFileError(f"{path} is {_kind(mode)}, not a file", remedy="name a model file")
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise ModelFileError(f"{path} is empty", remedy="fetch the file again")
                self.buffer = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ModelNotFoundError(f"no such file: {path}", remedy="check the path") from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ModelFileError(f"{path} cannot be read: {reason}") from error
        self._array: NDArray[np.uint8] | None = np.frombuffer(self.buffer, dtype=np.uint8)

    def view(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """A read-only view, no copy."""
        assert self._array is not None, "closed"
        return self._array[offset : offset + num_bytes]

    def release(self, offset: int, num_bytes: int) -> None:
        """Take these pages out of the process's resident memory; a later access reads them again."""
        if not hasattr(mmap, "MADV_DONTNEED") or num_bytes == 0 or self._array is None:
            return
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self.buffer.madvise(mmap.MADV_DONTNEED, start, offset + num_bytes - start)

    def close(self) -> None:
        """Unmap, unless views are still alive: then the last of them unmaps. Idempotent."""
        self._array = None
        with contextlib.suppress(BufferError):
            self.buffer.close()


def _kind(mode: int) -> str:
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((name for test, name in kinds.items() if test(mode)), "a device")


def quoted(name: str) -> str:
    """A name out of a file, made safe for a message."""
    return repr(name) if len(name) <= 100 else repr(name[:100]) + "..."
