"""The compiler behind a typed door, and where its machine code is kept.

Compiling takes six seconds, in every process. So the machine code is kept below the temporary folder: whoever is first
compiles, the workers of the run and later runs load it. numba notices a change only in the file of the function itself;
here functions and numbers come from several, so the folder's name has a digest of all of them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, compiled or loaded when it is first called; `py_func` is still the plain one."""
    import numba

    kept = numba.config.CACHE_DIR
    folder = kept or _own_folder()
    numba.config.CACHE_DIR = folder  # read by the decorator, once
    try:
        # no fast maths: the order of operations is that of the source, on every machine
        machine_code: F = numba.njit(function, cache=bool(folder), error_model="numpy")
        return machine_code
    finally:
        numba.config.CACHE_DIR = kept


@cache
def _own_folder() -> str:
    """A folder that only this user can write to, or "": what numba finds there it executes."""
    parent = Path(tempfile.gettempdir()) / f"rollmill-numba-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        found = parent.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        if not is_ours:
            return ""
        sources = sha256()
        for path in sorted(Path(__file__).parent.glob("*.py")):
            sources.update(path.read_bytes())
        folder = parent / f"dodgeball-{sources.hexdigest()[:16]}"
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return str(folder)
