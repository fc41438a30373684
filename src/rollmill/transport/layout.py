"""Where the arrays of one message lie in a flat block of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.types import ArraySpec

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


def aligned(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Layout:
    """Offsets of every leaf of a nested spec, each aligned to 64 bytes."""

    def __init__(self, spec: Nested) -> None:
        self.spec = spec
        self.offsets: dict[str, int] = {}
        end = 0
        for path, leaf in nested.leaves(spec):
            self.offsets[path] = end
            end += aligned(leaf.nbytes)
        self.nbytes = max(end, ALIGNMENT)

    def views(self, memory: Any, start: int = 0) -> Nested:
        """Nested arrays over `memory` (anything with the buffer protocol), beginning at `start`."""
        return self._views(self.spec, "", memory, start)

    def _views(self, spec: Nested, path: str, memory: Any, start: int) -> Nested:
        if isinstance(spec, dict):
            return {k: self._views(v, f"{path}.{k}" if path else k, memory, start) for k, v in spec.items()}
        assert isinstance(spec, ArraySpec)
        return np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=start + self.offsets[path])
