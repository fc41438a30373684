"""Code that the user names in a config: `path/to/file.py:Name` or `package.module:Name`."""

from __future__ import annotations

import sys
import traceback
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from rollmill.errors import Refused, nearest


def load_object(reference: str, setting: str) -> Any:
    """The object that `reference` names; `setting` is the config key that refusals name.

    Paths are relative to the current directory.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise Refused(f"{setting}={reference}: must be path/to/file.py:Name or package.module:Name")
    where = f"{setting}={reference}"
    module = _load_file(Path(place), where) if place.endswith(".py") else _import(place, where)
    try:
        return getattr(module, name)
    except AttributeError:
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise Refused(f"{where}: {place} has no '{name}'; {nearest(name, public)}") from None


def _load_file(path: Path, where: str) -> ModuleType:
    """The module of a file, under a name of its own, so that it can't shadow an installed module.

    The name holds the file's path and contents: loading it again gives the same classes until the file is edited.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Refused(f"{where}: can't read {path.absolute()}: {error.strerror}; fix the path") from error
    digest = sha256(bytes(path.resolve()) + b"\0" + source).hexdigest()[:16]
    module_name = f"_rollmill_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    assert spec is not None, "the suffix is .py"
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look their module up while it is being executed
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise Refused(f"{where}: {_describe(error, path)}; fix the file") from error
    return module


def _import(name: str, where: str) -> ModuleType:
    """An installed module."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            remedy = "install it, or name a file: path/to/file.py:Name"
            raise Refused(f"{where}: there is no module '{error.name}'; {remedy}") from error
        raise Refused(f"{where}: {_describe(error)}; install what is missing") from error
    except (Exception, SystemExit) as error:
        raise Refused(f"{where}: {_describe(error)}; fix the module") from error


def _describe(error: BaseException, path: Path | None = None) -> str:
    """File, line and message of what went wrong, in one line; the line is the user's own where there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is None or frame.filename == str(path)] or list(frames)
    return f"{own[-1].filename}, line {own[-1].lineno}: {message}"
