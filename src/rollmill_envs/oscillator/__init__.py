"""Ensembles of globally coupled neurons whose collective beat an agent is to quieten (Krylov, Dylov, Rosenblum, 2020).

`oscillator/bvp` is the Bonhoeffer–van der Pol ensemble, `oscillator/hindmarsh-rose` the bursting one. The integration
of all ensembles of a group is one call of compiled code, so numba is needed: the extra `native`.
"""

from __future__ import annotations

from importlib.util import find_spec

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.errors import Refused
from rollmill_envs.oscillator.config import SETTINGS
from rollmill_envs.oscillator.controllers import SCRIPTS
from rollmill_envs.oscillator.examine import examine

__all__ = ["PATHS", "SCRIPTS", "examine", "make_group", "names"]

PATHS = ("frozen",)


def names() -> list[str]:
    """The ids of this family; none without numba."""
    return list(SETTINGS) if find_spec("numba") else []


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of ensembles; it can always be drawn."""
    if not find_spec("numba"):
        raise Refused(f"env.id={config.id} needs the extra 'native': pip install \"rollmill[native]\"")
    from rollmill_envs.oscillator.oscillator_group import OscillatorGroup

    return OscillatorGroup(config, size)
