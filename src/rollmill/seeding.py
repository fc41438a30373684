"""Every random number comes from the root seed and the name of its use; there is no global generator.

Streams are keyed by (root seed, purpose, indices), so that a number depends on what it is for and never on which
process drew it or on what was drawn before.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def seed_sequence(root: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed sequence of one use; the purpose is hashed with a function that is the same in every process."""
    return np.random.SeedSequence((root, crc32(purpose.encode()), *indices))


def generator(root: int, purpose: str, *indices: int) -> np.random.Generator:
    """A generator for one use, e.g. `generator(seed, "action", actor, sequence)`."""
    return np.random.Generator(np.random.Philox(seed_sequence(root, purpose, *indices)))


def integer_seed(root: int, purpose: str, *indices: int) -> int:
    """A 31-bit seed for code that takes an integer, e.g. `env.reset(seed=…)`."""
    return int(seed_sequence(root, purpose, *indices).generate_state(1, np.uint32)[0] >> 1)


def episode_seed(root: int, group: int, env: int, episode: int) -> int:
    """The seed with which environment `env` of `group` starts its `episode`-th episode."""
    return integer_seed(root, "episode", group, env, episode)
