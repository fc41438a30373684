"""Folders for what libraries like to keep between runs, below the temporary folder: nothing is written elsewhere."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def own_folder(name: str) -> Path | None:
    """A folder below the temporary one that only this user can write to; None if it can't be had.

    Its name can be guessed, so another user may have put something there for us to read, or to execute.
    """
    folder = Path(tempfile.gettempdir()) / f"rollmill-{name}-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_ours else None


@contextmanager
def font_cache_below_tmp() -> Iterator[None]:
    """While matplotlib is imported for the first time, let it keep its list of fonts below the temporary folder.

    By default that is in the home directory. It stays between runs, because searching the fonts takes half of the
    second that the import takes.
    """
    if "MPLCONFIGDIR" in os.environ or "matplotlib" in sys.modules:
        yield  # the user's choice, or too late
        return
    os.environ["MPLCONFIGDIR"] = str(own_folder("matplotlib") or tempfile.mkdtemp(prefix="rollmill-matplotlib-"))
    try:
        yield
    finally:
        del os.environ["MPLCONFIGDIR"]
