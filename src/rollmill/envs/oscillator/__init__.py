"""Ensembles of globally coupled neurons whose collective beat an agent is to quieten (Krylov, Dylov, Rosenblum, 2020).

`oscillator/bvp` is the Bonhoeffer–van der Pol ensemble, `oscillator/hindmarsh-rose` the bursting one. The integration
of all ensembles of a group is one call of compiled code, so numba is needed: the extra `native`.
"""

from __future__ import annotations

from importlib.util import find_spec

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.oscillator.controllers import SCRIPTS
from rollmill.envs.oscillator.examine import examine
from rollmill.envs.oscillator.settings import SETTINGS
from rollmill.errors import Refused

__all__ = ["SCRIPTS", "examine", "make_group", "names"]


def names() -> list[str]:
    """The ids of this family; none without numba."""
    return list(SETTINGS) if find_spec("numba") else []


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of ensembles; it can always be drawn."""
    if not find_spec("numba"):
        raise Refused(f"env.id={config.id} needs the extra 'native': pip install \"rollmill[native]\"")
    from rollmill.envs.oscillator.group import OscillatorGroup

    return OscillatorGroup(config, size)
