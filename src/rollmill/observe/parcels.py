"""Objects through a socket between a run and its helper process: pickles, with a descriptor where one goes along.

Both ends are our own programs on one machine, and the socket has no name: no other process can write to it.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from typing import Any

_HEAD = struct.Struct("=BI")  # whether a descriptor goes along, length of the pickle


def send(link: socket.socket, thing: Any, descriptor: int | None = None) -> None:
    """Send an object; waits while the other end is busy."""
    data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    head = _HEAD.pack(descriptor is not None, len(data))
    if descriptor is None:
        link.sendall(head + data)
    else:
        socket.send_fds(link, [head], [descriptor])
        link.sendall(data)


def receive(link: socket.socket) -> tuple[Any, int | None]:
    """The next object, and the descriptor that came with it; EOFError when the other end is closed."""
    head, descriptors, _, _ = socket.recv_fds(link, _HEAD.size, 1)
    while 0 < len(head) < _HEAD.size:
        head += _some(link, _HEAD.size - len(head))
    if not head:
        raise EOFError
    _, size = _HEAD.unpack(head)
    data = bytearray()
    while len(data) < size:
        data += _some(link, size - len(data))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return pickle.loads(bytes(data)), descriptors[0] if descriptors else None


def _some(link: socket.socket, size: int) -> bytes:
    data = link.recv(min(size, 1 << 20))
    if not data:
        raise EOFError
    return data
