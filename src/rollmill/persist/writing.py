"""Files of a run folder: a reader always finds whole lines and whole files, and a loss is noticed."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any


class AppendedFile:
    """A file that grows by whole pieces, each written at once.

    After a failure it is closed, and the next `write` opens it again: a disk that was full may have room by then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> int:
        """Open the file unless it is open; its size in bytes."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return os.fstat(self._descriptor).st_size

    def write(self, piece: str | bytes) -> None:
        """Append a piece whole or not at all; OSError if the disk is full or the file has been removed."""
        before = self.open()
        assert self._descriptor is not None
        rest = memoryview(piece.encode() if isinstance(piece, str) else piece)
        written = 0
        try:
            while written < len(rest):
                written += os.write(self._descriptor, rest[written:])
            # An unlinked file takes writes without complaint, and they could never be read.
            if os.fstat(self._descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed during the run", str(self.path))
        except OSError:
            self._take_back(before, written)
            self.close()
            raise

    def sync(self) -> None:
        """Wait until what was written would survive a power cut."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file if it is open."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _take_back(self, before: int, written: int) -> None:
        """Remove a piece that was written in part, unless another process has appended since."""
        assert self._descriptor is not None
        with suppress(OSError):
            if written and os.fstat(self._descriptor).st_size == before + written:
                os.ftruncate(self._descriptor, before)


class DraftFile:
    """A file that appears when it is whole: written under a hidden name next to its own, whose form `clean` knows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def publish(self) -> None:
        """It is whole: give it its name."""
        os.replace(self.draft, self.path)

    def discard(self) -> None:
        """It will never be whole."""
        with suppress(OSError):
            self.draft.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content at once: a reader sees the old or the new, never a part, also after a power cut."""
    file = DraftFile(path)
    try:
        write_synced(file.draft, content.encode() if isinstance(content, str) else content)
        file.publish()
    except OSError:
        file.discard()
        raise


def write_synced(path: Path, data: bytes) -> None:
    """Write a file down to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder down to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_atomically(link: Path, target: str, draft: Path) -> None:
    """Let a symbolic link lead to another target, without a moment in which there is none."""
    remove(draft)
    try:
        os.symlink(target, draft)
        os.replace(draft, link)
    except OSError:
        remove(draft)
        raise


def remove(path: Path) -> None:
    """Remove a file, link or folder, as far as it is there and the system lets us."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def read_record(file: Path) -> dict[str, Any]:
    """The JSON record in a file; empty if there is none or it can't be read."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def last_line(output: Path) -> str:
    """The last line that a process printed; empty if there is none."""
    lines = tail(output)
    return next((line.removeprefix("rollmill: ") for line in reversed(lines) if line.strip()), "")


def tail(file: Path, size: int = 8192) -> list[str]:
    """The lines in the last bytes of a file; the first and the last may be cut. Empty if it can't be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - size))
            return opened.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def unused(path: Path) -> Path:
    """The path, or the path with the first number appended (2, 3, …) that is not in use."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not name.exists())


def to_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Strict JSON: NaN and infinities, which JSON lacks, become null."""
    return json.dumps(json_value(record), indent=indent, allow_nan=False, ensure_ascii=False)


def json_value(value: Any) -> Any:
    """The value in the types that JSON has: arrays as lists, null for NaN and infinities, text for all others."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):  # an array, or a scalar of numpy
        return json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str) or value is None else str(value)
