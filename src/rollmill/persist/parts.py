"""A checkpoint as parts: named pieces, each in files of its own, written whole or not at all, checked as they are read.

`manifest.json` holds the size and the checksum of every other file and one of itself, so a change of any byte is found
before the bytes are used, and a part is read without reading the others. Loading executes nothing: arrays are
safetensors, the rest is JSON.
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
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from rollmill.config.base import Config, shown
from rollmill.errors import RollmillError
from rollmill.persist.writing import sync_folder, write_synced
from rollmill.types import Array

FORMAT = 1  # of the folder; a reader refuses every other
MANIFEST, STATE, ARRAYS = "manifest.json", "state.json", ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # of a part, and of a chunk
_FILE = re.compile(rf"({_NAME.pattern})(?:@({_NAME.pattern}))?{re.escape(ARRAYS)}")
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
    A chunk is sealed: under its name a run never stores other arrays, so a checkpoint shares it with the one before.
    """

    arrays: Mapping[str, Mapping[str, Array]]  # the name of a part → its named arrays
    state: Mapping[str, Any]
    update: int
    env_steps: int
    chunks: Mapping[str, Mapping[str, Mapping[str, Array]]] = field(default_factory=dict)  # part → chunk → its arrays


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


class Checkpoint:
    """A checkpoint on disk: its manifest is checked when it is opened, every part when it is read, else `Damaged`."""

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.path = path
        self._folder = Path(os.path.realpath(path))  # a link may lead to another checkpoint when the next part is read
        self.manifest = manifest or self._read_manifest()

    @property
    def update(self) -> int:
        """The number of updates after which it was made."""
        return self.manifest.update

    def part(self, name: str) -> dict[str, Array]:
        """The named arrays of one part; no other file is read."""
        return self._arrays(_file(name))

    def chunks(self, part: str) -> Iterator[tuple[str, dict[str, Array]]]:
        """The chunks of a part by name, each read when its turn comes."""
        for name in self.manifest.files:
            if (match := _FILE.fullmatch(name)) and match[1] == part and match[2]:
                yield match[2], self._arrays(name)

    def state(self) -> dict[str, Any]:
        """The part that is not arrays."""
        data = self._checked(STATE)
        try:
            record = json.loads(data, object_pairs_hook=_without_repeats)
            counters = {"update": self.manifest.update, "env_steps": self.manifest.env_steps}
            if {key: record[key] for key in counters} != counters:
                raise ValueError("its counters are not those of the manifest")
            state = _decoded(record["state"])
            if not isinstance(state, dict):
                raise ValueError("it is not a section with keys")
        except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
            raise Damaged(self.path, f"{STATE} can't be understood: {_words(error)}") from error
        return state

    def content(self) -> Content:
        """All parts, every file read once."""
        names = [match for name in self.manifest.files if (match := _FILE.fullmatch(name))]
        arrays = {match[1]: self.part(match[1]) for match in names if not match[2]}
        chunks = {part: dict(self.chunks(part)) for part in dict.fromkeys(match[1] for match in names if match[2])}
        return Content(arrays, self.state(), self.update, self.manifest.env_steps, chunks)

    def share(self, name: str, folder: Path) -> FileRecord | None:
        """Link one of its files into another folder; None if that can't be done."""
        record = self.manifest.files.get(name)
        try:
            if record is None or os.lstat(self._folder / name).st_size != record.size:
                return None
            os.link(self._folder / name, folder / name, follow_symlinks=False)
        except OSError:  # it was removed, or the file system has no links
            return None
        return record

    def _arrays(self, name: str) -> dict[str, Array]:
        from safetensors.numpy import load

        data = self._checked(name)
        try:
            arrays: dict[str, Array] = load(data)
        except Exception as error:  # the checksum is right, so it was written on purpose
            raise Damaged(self.path, f"{name} can't be understood: {_words(error)}") from error
        return arrays

    def _checked(self, name: str) -> bytes:
        if (record := self.manifest.files.get(name)) is None:
            raise Damaged(self.path, f"{MANIFEST} doesn't name {name}")
        data = self._read(name, record.size)
        if len(data) < record.size:
            raise Damaged(self.path, f"{name} is cut short: {len(data)} of {record.size} bytes")
        if sha256(data).hexdigest() != record.sha256:
            raise Damaged(self.path, f"{name} has a wrong checksum")
        return data

    def _read(self, name: str, most: int) -> bytes:
        """The bytes of a regular file of at most `most` bytes."""
        try:
            # a symbolic link may lead anywhere, and a fifo would wait for ever
            special = os.O_NOFOLLOW | os.O_NONBLOCK
            with open(self._folder / name, "rb", opener=lambda file, flags: os.open(file, flags | special)) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise Damaged(self.path, f"{name} is not a plain file")
                if status.st_size > most:
                    raise Damaged(self.path, f"{name} is too long: {status.st_size} bytes instead of {most}")
                return file.read(status.st_size)
        except FileNotFoundError:
            reason = f"{name} is missing" if self._folder.exists() else "there is no such folder"
            raise Damaged(self.path, reason) from None
        except NotADirectoryError:
            raise Damaged(self.path, "is not a folder") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Damaged(self.path, f"{name} is not a plain file") from None
            raise Unjudged(self.path, f"{name} can't be read: {_words(error)}") from error
        except MemoryError:
            raise Unjudged(self.path, f"{name} doesn't fit into memory") from None

    def _read_manifest(self) -> Manifest:
        raw = self._read(MANIFEST, _LARGEST_MANIFEST)
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError):
            raise Damaged(self.path, f"{MANIFEST} is unreadable") from None
        if not isinstance(record, dict) or type(record.get("format")) is not int:
            raise Damaged(self.path, f"{MANIFEST} is unreadable")
        if record["format"] != FORMAT:
            which = "a newer" if record["format"] > FORMAT else "an unknown"
            remedy = "; update rollmill" if record["format"] > FORMAT else ""
            number = shown(record["format"])
            raise Unjudged(self.path, f"is written in {which} format, {number}; this rollmill reads {FORMAT}{remedy}")
        record.pop("sha256", None)
        try:
            manifest = Manifest.model_validate(record)
            is_intact = manifest.to_bytes() == raw
        except (ValidationError, ValueError):
            raise Damaged(self.path, f"{MANIFEST} has wrong entries") from None
        if not is_intact:
            raise Damaged(self.path, f"{MANIFEST} has a wrong checksum")
        for name in manifest.files:
            if name != STATE and not _FILE.fullmatch(name):
                raise Damaged(self.path, f"{MANIFEST} names a file that can't be part of a checkpoint: {shown(name)}")
        if STATE not in manifest.files:
            raise Damaged(self.path, f"{MANIFEST} doesn't name {STATE}")
        return manifest


def write_parts(folder: Path, content: Content, metric: Metric | None, previous: Checkpoint | None = None) -> Manifest:
    """Write a checkpoint into a new folder, down to the disk; the manifest goes last, and OSError leaves a part of it.

    Chunks that `previous` has too are linked, not written.
    """
    folder.mkdir()
    files = {}
    for part, arrays in content.arrays.items():
        files[_file(part)] = _write(folder / _file(part), array_bytes(arrays))
    for part, chunks in content.chunks.items():
        for chunk, arrays in chunks.items():
            name = _file(part, chunk)
            shared = None if previous is None else previous.share(name, folder)
            files[name] = shared or _write(folder / name, array_bytes(arrays))
    # The counters are here too, so that a manifest can't be paired with the files of another checkpoint.
    state = {"update": content.update, "env_steps": content.env_steps, "state": _encoded(content.state)}
    files[STATE] = _write(folder / STATE, json.dumps(state, allow_nan=False).encode())
    manifest = Manifest(
        format=FORMAT,
        rollmill=package_version("rollmill") or "unknown",
        update=content.update,
        env_steps=content.env_steps,
        metric=metric,
        files=files,
    )
    _write(folder / MANIFEST, manifest.to_bytes())
    sync_folder(folder)
    return manifest


def _write(path: Path, data: bytes) -> FileRecord:
    write_synced(path, data)
    return FileRecord(size=len(data), sha256=sha256(data).hexdigest())


def _file(*names: str) -> str:
    """The file of a part, or of one of its chunks."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' can't be the name of a part of a checkpoint")
    return "@".join(names) + ARRAYS


def array_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Named arrays as a safetensors file."""
    from safetensors.numpy import save

    if "__metadata__" in arrays:
        raise ValueError("'__metadata__' is a reserved name in safetensors")
    # safetensors takes the memory as it lies, whatever the strides; `ascontiguousarray` would make 0-d arrays 1-d.
    data: bytes = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return data


def _rendered(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, allow_nan=False).encode() + b"\n"


@cache
def package_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


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


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return record


def _words(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return " ".join(text.split())[:200]
