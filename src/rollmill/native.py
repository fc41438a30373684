"""Compiled functions and their cache.

Compiling takes seconds, in every process. So the machine code is cached below the temporary folder (numba would write
next to the source files): the first process compiles, the workers of the run and later runs load it. numba notices a
change only in the file of the function itself, but functions call those of other files; so there is a folder for each
state of a package's sources.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from rollmill.launch.caches import own_folder

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, is_fused: bool = False) -> F:
    """The function as machine code, compiled or loaded when it is first called; `py_func` is still the plain one.

    Where numba is missing it stays as it is, so that its module can be imported. The order of operations is that of the
    source, on every machine, unless `is_fused` lets a product and a sum be rounded once where a machine can do that;
    portable numerics pin the machine, and numba keeps the code of each target apart.
    """
    try:
        import numba
    except ImportError:
        return function
    kept = numba.config.CACHE_DIR
    folder = kept or _folder_for(Path(function.__code__.co_filename).parent)
    numba.config.CACHE_DIR = folder  # read by the decorator, once
    try:
        fast_maths = {"contract", "nsz"} if is_fused else False
        machine_code: F = numba.njit(function, cache=bool(folder), error_model="numpy", fastmath=fast_maths)
        return machine_code
    finally:
        numba.config.CACHE_DIR = kept


@cache
def _folder_for(package: Path) -> str:
    """The cache folder of a package; "" if that can't be done safely: numba executes what it finds."""
    parent = own_folder("numba")
    if parent is None:
        return ""
    sources = sha256()
    for path in sorted(package.glob("*.py")):
        sources.update(path.read_bytes())
    folder = parent / f"{package.name}-{sources.hexdigest()[:16]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return str(folder)
