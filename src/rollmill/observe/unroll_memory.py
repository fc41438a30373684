"""Memory in which an unroll goes to another process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.transport.layout import Layout
from rollmill.types import ArraySpec

SPARSE = ("final_obs", "final_state")  # written only where an episode ended: copying all would touch untouched memory


class UnrollMemory:
    """One unroll in anonymous memory that two processes map."""

    def __init__(self, spec: Nested, descriptor: int | None = None) -> None:
        layout = Layout(spec)
        self.spec = spec
        if descriptor is None:
            descriptor = os.memfd_create("rollmill-observer", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, layout.nbytes)
        self.descriptor = descriptor
        self._views: Mapping[str, Nested] = layout.views(mmap.mmap(descriptor, layout.nbytes))

    @classmethod
    def like(cls, arrays: Mapping[str, Nested]) -> UnrollMemory:
        """Memory for unrolls such as this one."""
        return cls(nested.map_leaves(lambda leaf: ArraySpec(leaf.shape, leaf.dtype.name), dict(arrays)))

    def write(self, arrays: Mapping[str, Nested]) -> None:
        """Copy an unroll in."""
        ended = np.nonzero(arrays["terminated"] | arrays["truncated"])
        for name, tree in arrays.items():
            if name not in SPARSE:
                nested.copy_into(self._views[name], tree)
            elif len(ended[0]):
                nested.assign(self._views[name], ended, nested.index(tree, ended))

    def read(self) -> Mapping[str, Nested]:
        """The unroll; read-only, and valid until the next `write`."""

        def view(leaf: np.ndarray) -> np.ndarray:
            leaf = leaf.view()
            leaf.flags.writeable = False
            return leaf

        return {name: nested.map_leaves(view, tree) for name, tree in self._views.items()}

    def close(self) -> None:
        """Let go of the descriptor; what is mapped stays."""
        os.close(self.descriptor)
