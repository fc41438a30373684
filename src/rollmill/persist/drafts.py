"""Files that appear when they are whole: written under a hidden name next to their own, and renamed at the end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class DraftFile:
    """The hidden name of a file that is being written; `rollmill clean` knows the form of the name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)

    def publish(self) -> None:
        """It is whole: give it its name."""
        os.replace(self.draft, self.path)

    def discard(self) -> None:
        """It will never be whole."""
        with suppress(OSError):
            self.draft.unlink(missing_ok=True)
