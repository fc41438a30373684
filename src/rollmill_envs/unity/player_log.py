"""The output of builds, in a folder of bounded size."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from time import time_ns
from typing import IO

_PIECES = 16  # files that share the allowance: the more, the less is lost when the oldest goes
_CHUNK = 1 << 16
_SUFFIX = ".unity.log"


class CappedLog:
    """Copies what a build prints into the folder, piece by piece, until the build closes its output."""

    def __init__(self, folder: Path, megabytes: float, source: IO[bytes]) -> None:
        self._folder = folder
        self._piece_bytes = max(1, int(megabytes * 1e6) // _PIECES)
        self._source = source
        self._file: FileIO | None = None
        self._written = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._copy, name="unity log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for what the build printed last; it must have ended."""
        self._thread.join(timeout=1.0)  # a child of the build may hold its output open

    def _copy(self) -> None:
        with self._source, suppress(OSError):  # a full disk ends the log, not the run
            while chunk := os.read(self._source.fileno(), _CHUNK):
                self._write(chunk)
        if self._file is not None:
            self._file.close()

    def _write(self, chunk: bytes) -> None:
        while chunk:
            room = self._piece_bytes - self._written
            if self._file is None or room <= 0 or os.fstat(self._file.fileno()).st_nlink == 0:  # another log removed it
                self._begin_piece()
                room = self._piece_bytes
            assert self._file is not None
            self._written += self._file.write(chunk[:room]) or 0
            chunk = chunk[room:]

    def _begin_piece(self) -> None:
        """Open the next file, having made room for it by counting: every piece may still grow to its full size."""
        if self._file is not None:
            self._file.close()
        pieces = sorted(self._folder.glob(f"*{_SUFFIX}"))
        for path in pieces[: max(0, len(pieces) - _PIECES + 1)]:
            path.unlink(missing_ok=True)
        # names sort by age, whichever process wrote them
        path = self._folder / f"{time_ns():020d}-{os.getpid()}-{threading.get_native_id()}{_SUFFIX}"
        self._file = FileIO(str(path), "x")
        self._written = 0
