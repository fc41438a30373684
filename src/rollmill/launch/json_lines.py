"""JSON lines through a pipe, from processes that may die at any moment."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any


def write_line(descriptor: int, **message: Any) -> None:
    """Write a message to a pipe; nothing happens if its reader is gone."""
    data = json.dumps(message).encode() + b"\n"
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


class Lines:
    """JSON lines that arrive through a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self._rest = b""

    def take(self) -> list[dict[str, Any]]:
        """The messages that are complete by now."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.read, 65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def forget(self) -> None:
        """Drop what has come; the writer died, perhaps in the middle of a line."""
        self.take()
        self._rest = b""
