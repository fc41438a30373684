"""One checkpoint as a folder of files: written so that it is whole or absent, read so that it is right or refused.

Loading executes nothing: arrays are safetensors, the rest is JSON. `manifest.json` holds the size and the checksum of
every other file and one of itself, so a change of any byte is seen before anything is made of the bytes.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from rollmill.config.base import Config, shown
from rollmill.errors import RollmillError

FORMAT = 1  # of the folder; a reader refuses every other
MANIFEST, STATE, ARRAYS = "manifest.json", "state.json", ".safetensors"
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LARGEST_FILE, _LARGEST_MANIFEST = 1 << 36, 1 << 20  # bytes; beyond them nothing is allocated


class Damaged(RollmillError):
    """A checkpoint that can't be used; `reason` says what is wrong with it."""

    exit_code = 2

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class Unjudged(Damaged):
    """A checkpoint that may be good, but not for us: of another format, or the system doesn't let us read it."""


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    `state` is JSON: text as keys, tuples come back as lists; floats come back bit-equal, NaN and infinities included.
    """

    arrays: Mapping[str, Mapping[str, NDArray[Any]]]  # the stem of a file → its named arrays
    state: Mapping[str, Any]
    update: int
    env_steps: int


class FileRecord(Config):
    """What a file must be like."""

    size: int = Field(ge=0, le=_LARGEST_FILE)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Metric(Config):
    """How good the weights of a checkpoint are."""

    name: str
    value: float


class Manifest(Config):
    """The table of contents of a checkpoint."""

    format: int
    rollmill: str  # the version that wrote it
    update: int = Field(ge=0)
    env_steps: int = Field(ge=0)
    metric: Metric | None
    files: dict[str, FileRecord]

    def to_bytes(self) -> bytes:
        """The only form in which a manifest is accepted, with a checksum of all the rest as its last entry."""
        record = self.model_dump()
        return _rendered({**record, "sha256": sha256(_rendered(record)).hexdigest()})


def write_files(folder: Path, content: Content, metric: Metric | None) -> Manifest:
    """Write a checkpoint into a new folder, down to the disk; the manifest goes last, and OSError leaves a part."""
    folder.mkdir()
    files = {}
    for stem, arrays in content.arrays.items():
        if not _STEM.fullmatch(stem):
            raise ValueError(f"'{stem}' can't be the name of a checkpoint's file")
        files[stem + ARRAYS] = _write(folder / (stem + ARRAYS), _array_bytes(arrays))
    # The counters are here too, so that a manifest can't be paired with the files of another checkpoint.
    state = {"update": content.update, "env_steps": content.env_steps, "state": _encoded(content.state)}
    files[STATE] = _write(folder / STATE, json.dumps(state, allow_nan=False).encode())
    manifest = Manifest(
        format=FORMAT,
        rollmill=_rollmill_version(),
        update=content.update,
        env_steps=content.env_steps,
        metric=metric,
        files=files,
    )
    _write(folder / MANIFEST, manifest.to_bytes())
    sync_folder(folder)
    return manifest


def read_content(folder: Path) -> Content:
    """The content of a checkpoint after every check, or `Damaged`."""
    with _opened(folder) as handle:
        manifest = _manifest(folder, handle)
        arrays = {}
        state = b""
        for name, record in manifest.files.items():
            data = _read(folder, handle, name, record.size, exactly=True)
            if sha256(data).hexdigest() != record.sha256:
                raise Damaged(folder, f"{name} has a wrong checksum")
            if name == STATE:
                state = data
            else:
                arrays[name.removesuffix(ARRAYS)] = _arrays(folder, name, data)
    return Content(arrays, _state(folder, state, manifest), manifest.update, manifest.env_steps)


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, checked against its own checksum but not against the files; else `Damaged`."""
    with _opened(folder) as handle:
        return _manifest(folder, handle)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder down to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, data: bytes) -> FileRecord:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size=len(data), sha256=sha256(data).hexdigest())


def _array_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    from safetensors.numpy import save

    if "__metadata__" in arrays:
        raise ValueError("'__metadata__' is a reserved name in safetensors")
    # safetensors takes the memory as it lies, whatever the strides; `ascontiguousarray` would make 0-d arrays 1-d.
    data: bytes = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return data


def _rendered(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, allow_nan=False).encode() + b"\n"


@cache
def _rollmill_version() -> str:
    try:
        return version("rollmill")
    except PackageNotFoundError:
        return "unknown"


# Floats that JSON lacks are written as {"~float": bits}; keys that begin with "~" get one more.


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"~float": struct.pack(">d", value).hex()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys of a checkpoint's state must be text: {shown(list(value))}")
        return {"~" + key if key.startswith("~") else key: _encoded(item) for key, item in value.items()}
    raise TypeError(f"{shown(value)} can't be part of a checkpoint's state")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "~float" in value:
        return struct.unpack(">d", bytes.fromhex(value["~float"]))[0]
    return {key[1:] if key.startswith("~") else key: _decoded(item) for key, item in value.items()}


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise Damaged(folder, "there is no such folder") from None
    except NotADirectoryError:
        raise Damaged(folder, "is not a folder") from None
    except (OSError, ValueError) as error:
        raise Unjudged(folder, f"can't be opened: {_words(error)}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _read(folder: Path, handle: int, name: str, size: int, exactly: bool) -> bytes:
    """The bytes of a regular file of `size` bytes, or of `size` at most."""
    try:
        # a symbolic link may lead anywhere, and a fifo would wait for ever
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        raise Damaged(folder, f"{name} is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Damaged(folder, f"{name} is not a plain file") from None
        raise Unjudged(folder, f"{name} can't be opened: {_words(error)}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(folder, f"{name} is not a plain file")
        found = status.st_size
        if found > size:
            raise Damaged(folder, f"{name} is too long: {found} bytes instead of {size}")
        if exactly and found < size:
            raise Damaged(folder, f"{name} is cut short: {found} of {size} bytes")
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(found)
    except OSError as error:
        raise Unjudged(folder, f"{name} can't be read: {_words(error)}") from error
    except MemoryError:
        raise Unjudged(folder, f"{name} doesn't fit into memory") from None
    finally:
        os.close(file)
    if len(data) < found:
        raise Damaged(folder, f"{name} was cut short while it was read")
    return data


def _manifest(folder: Path, handle: int) -> Manifest:
    raw = _read(folder, handle, MANIFEST, _LARGEST_MANIFEST, exactly=False)
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        raise Damaged(folder, f"{MANIFEST} is unreadable") from None
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise Damaged(folder, f"{MANIFEST} is unreadable")
    if record["format"] != FORMAT:
        which = "a newer" if record["format"] > FORMAT else "an unknown"
        remedy = "; update rollmill" if record["format"] > FORMAT else ""
        number = shown(record["format"])
        raise Unjudged(folder, f"is written in {which} format, {number}; this rollmill reads {FORMAT}{remedy}")
    record.pop("sha256", None)
    try:
        manifest = Manifest.model_validate(record)
        is_intact = manifest.to_bytes() == raw
    except (ValidationError, ValueError):
        raise Damaged(folder, f"{MANIFEST} has wrong entries") from None
    if not is_intact:
        raise Damaged(folder, f"{MANIFEST} has a wrong checksum")
    for name in manifest.files:
        if name != STATE and not (name.endswith(ARRAYS) and _STEM.fullmatch(name.removesuffix(ARRAYS))):
            raise Damaged(folder, f"{MANIFEST} names a file that can't be part of a checkpoint: {shown(name)}")
    if STATE not in manifest.files:
        raise Damaged(folder, f"{MANIFEST} doesn't name {STATE}")
    return manifest


def _arrays(folder: Path, name: str, data: bytes) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load

    try:
        arrays: dict[str, NDArray[Any]] = load(data)
    except Exception as error:  # the checksum is right, so it was written on purpose
        raise Damaged(folder, f"{name} can't be understood: {_words(error)}") from error
    return arrays


def _state(folder: Path, data: bytes, manifest: Manifest) -> dict[str, Any]:
    try:
        record = json.loads(data, object_pairs_hook=_without_repeats)
        counters = {"update": manifest.update, "env_steps": manifest.env_steps}
        if {key: record[key] for key in counters} != counters:
            raise ValueError("its counters are not those of the manifest")
        state = _decoded(record["state"])
        if not isinstance(state, dict):
            raise ValueError("it is not a section with keys")
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise Damaged(folder, f"{STATE} can't be understood: {_words(error)}") from error
    return state


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return record


def _words(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return " ".join(text.split())[:200]
