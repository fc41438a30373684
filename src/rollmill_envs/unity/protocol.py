"""The messages of ML-Agents, built by the protobuf version that is installed.

mlagents-envs 0.28 carries files that protoc generated in 2017. Their descriptions of the messages are still valid,
but protobuf from 3.21 on refuses the code around them, and TensorBoard wants a newer one. So we read the descriptions
out of the files, without executing them, and let protobuf build the messages as it does for code generated today.
"""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "mlagents_envs.communicator_objects"


def is_installed() -> bool:
    """Whether the extra `unity` is installed; imports nothing."""
    return find_spec("mlagents_envs") is not None


def prepare() -> None:
    """Make `mlagents_envs` importable; call it before importing anything from there."""
    if f"{_PACKAGE}.unity_message_pb2" in sys.modules:
        return
    found = find_spec("mlagents_envs")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "communicator_objects"
    waiting = {path.stem: _serialized(path) for path in sorted(folder.glob("*_pb2.py"))}
    for name in list(waiting):
        _build(name, waiting)


def _serialized(path: Path) -> bytes:
    """The description of a file's messages: the argument `serialized_pb=_b('…')` in what protoc generated."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            text = ast.literal_eval(node.value.args[0])
            assert isinstance(text, str)
            return text.encode("latin1")
    raise ImportError(f"{path} describes no messages; install mlagents-envs 0.28")


def _build(name: str, waiting: dict[str, bytes]) -> None:
    """Build one module and, before it, those whose messages it uses."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.internal import builder  # what all code generated today calls

    serialized = waiting.pop(name, None)
    if serialized is None:
        return
    for used in descriptor_pb2.FileDescriptorProto.FromString(serialized).dependency:
        _build(Path(used).stem + "_pb2", waiting)
    module = ModuleType(f"{_PACKAGE}.{name}")
    described: Any = descriptor_pool.Default().AddSerializedFile(serialized)
    module.__dict__["DESCRIPTOR"] = described
    builder.BuildMessageAndEnumDescriptors(described, module.__dict__)
    builder.BuildTopDescriptorsAndMessages(described, module.__name__, module.__dict__)
    sys.modules[module.__name__] = module  # messages are pickled on their way between threads, so it must be found
