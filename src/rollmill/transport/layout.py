"""The layout of a message's arrays in a flat block of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill import nested
from rollmill.nested import Nested

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


def aligned(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Layout:
    """Offsets of every leaf of a nested spec, each aligned to 64 bytes."""

    def __init__(self, spec: Nested) -> None:
        self.spec = spec
        self.nbytes = 0
        self.offsets = self._place(spec)
        self.nbytes = max(self.nbytes, ALIGNMENT)

    def _place(self, spec: Nested) -> Nested:
        """Offsets in the shape of the spec (and not by path: keys may contain whatever joins a path)."""
        if isinstance(spec, dict):
            return {key: self._place(spec[key]) for key in sorted(spec)}
        offset = self.nbytes
        self.nbytes += aligned(spec.nbytes)
        return offset

    def views(self, memory: Any, start: int = 0) -> Nested:
        """Nested arrays over `memory` (anything with the buffer protocol), beginning at `start`."""
        return nested.map_leaves(
            lambda spec, offset: np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=start + offset),
            self.spec,
            self.offsets,
        )
