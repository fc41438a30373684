"""Compiled functions, and where their machine code is kept.

Compiling takes seconds, in every process. So the machine code is kept below the temporary folder: the check at start-up
compiles, and the workers of the run, and later runs, load it. (numba would write beside the source files.)
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F")


def compiled(function: F) -> F:
    """The function as machine code; where numba is missing as it stands, so that its module can be imported."""
    try:
        import numba
    except ImportError:
        return function
    kept = numba.config.CACHE_DIR
    folder = kept or _own_folder()
    numba.config.CACHE_DIR = folder  # read by the decorator, once
    try:
        # fastmath stays off: the order of operations is that of the source, on every machine
        result: Any = numba.njit(function, cache=bool(folder), error_model="numpy")
        return result  # type: ignore[no-any-return]
    finally:
        numba.config.CACHE_DIR = kept


def _own_folder() -> str:
    """A folder of this user's below the temporary one, or "": what numba finds there it executes."""
    folder = Path(tempfile.gettempdir()) / f"rollmill-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return ""
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return str(folder) if is_ours else ""
