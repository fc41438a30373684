"""Keeps matplotlib from writing outside the temporary folder.

Matplotlib keeps a list of the machine's fonts, in the home directory by default. A folder below the temporary one
serves as well; it stays between runs, because searching the fonts takes half of the second that the import takes.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def font_cache_below_tmp() -> Iterator[None]:
    """While matplotlib is imported for the first time, let it find its folder below the temporary one."""
    if "MPLCONFIGDIR" in os.environ or "matplotlib" in sys.modules:
        yield  # the user's choice, or too late
        return
    os.environ["MPLCONFIGDIR"] = str(_own_folder())
    try:
        yield
    finally:
        del os.environ["MPLCONFIGDIR"]


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"rollmill-matplotlib-{os.getuid()}"
    # The name can be guessed, so somebody else may have put something there for us to read.
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    except FileExistsError:
        is_ours = False
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="rollmill-matplotlib-"))
