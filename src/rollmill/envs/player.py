"""What decides for a group: a policy, a script or chance, called in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.group import EnvGroup
from rollmill.types import Array


class Player(Protocol):
    """Decides for all rows of a group; may read the state of the environments (`base_group`), as scripts do."""

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Actions as an agent stores them; `reset[k]` says that row k shows the first observation of an episode."""


MakePlayer = Callable[[int], Player]  # for a group of that size


def base_group(group: EnvGroup) -> EnvGroup:
    """The group that steps the environments, without its wrappers (stacked frames and such)."""
    while (inner := getattr(group, "inner", None)) is not None:
        group = inner
    return group
