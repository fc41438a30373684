"""Standard output that can't bring a run down."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

_ASCII = str.maketrans({"×": "x", "–": "-", "—": "-", "→": "->", "≥": ">=", "≤": "<=", "µ": "u", "…": "..."})


class Outlet:
    """Passes text to a stream, replaces what its encoding can't say, and falls silent when it is closed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # Python's own sys.stdout is None if the process was started without one

    @property
    def encoding(self) -> str:
        """Encoding of the stream; rich draws with ASCII characters unless it is a UTF."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed
            return False

    def write(self, text: str) -> int:
        """Write what the stream can take."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            text = text.translate(_ASCII).encode(self.encoding, "replace").decode(self.encoding)
        self._attempt("write", text)
        return len(text)

    def flush(self) -> None:
        """Pass on what is buffered."""
        self._attempt("flush")

    def _attempt(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # a broken pipe, a full disk; a closed stream
            stream, self._stream = self._stream, None
            # Python would fail with exit code 120 on flushing its buffer at exit.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:  # closed, or not backed by a file
                os.dup2(nothing.fileno(), stream.fileno())
