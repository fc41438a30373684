"""Writing to the run folder so that a reader always finds whole lines, and a loss is noticed."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO


class AppendedFile:
    """A file that grows by whole pieces, each of them flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Open the file unless it is open; the first `write` does so too."""
        if self._file is None:
            self._file = self.path.open("ab")

    def write(self, piece: str | bytes) -> None:
        """Append and flush; OSError if the disk is full or the file has been removed.

        What a full disk refused stays in the buffer and is written before the next piece, if there is room again.
        """
        self.open()
        assert self._file is not None
        self._file.write(piece.encode() if isinstance(piece, str) else piece)
        self._file.flush()
        # An unlinked file takes writes without complaint, and nobody would ever read them.
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed during the run", str(self.path))

    def close(self) -> None:
        """Close the file if it is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content at once: a reader sees the old or the new, never a part, also after a power cut."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def to_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Strict JSON: NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_plain(record), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    number = float(value)  # numpy scalars among others
    return number if math.isfinite(number) else None
