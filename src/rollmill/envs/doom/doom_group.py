"""Games of one scenario as a group."""

from __future__ import annotations

from functools import partial
from typing import Any

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.doom.blueprint import make_blueprint
from rollmill.envs.doom.game import DoomEnv
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.instance import failed
from rollmill.errors import SignalExit
from rollmill.pulse import PULSE, STEP
from rollmill.types import Array


class DoomGroup(GymGroup):
    """K games, each with an engine of its own; one whose engine dies is made again and played to where it stood.

    There are no snapshots: the engine can't save the state of its generators. Episodes are played again instead.
    """

    def __init__(self, config: EnvConfig, size: int, pictures: bool) -> None:
        blueprint = make_blueprint(config)
        self.frame_skip = blueprint.settings.frame_skip
        super().__init__(config.id, partial(DoomEnv, blueprint, config.time_limit, pictures), size)

    def _advance(self, k: int, action: Array) -> None:
        """What a group does with any environment, without the checks that ours doesn't need.

        The engine shares the core and leaves the caches cold, where every call that is saved counts threefold.
        """
        instance = self._instances[k]
        PULSE.enter(STEP)
        try:
            observation, reward, terminated, truncated, instance.info = instance.env.step(action)
        except SignalExit:
            raise
        except Exception as error:
            raise failed(f"{instance.name} raised in step(): {type(error).__name__}: {error}", error) from error
        finally:
            PULSE.leave()
        self._store(k, 0, observation)
        instance.keep(action)
        self._steps[k] += 1
        self._reward[k] = reward
        if terminated or truncated:
            self._terminated[k] = terminated
            self._truncated[k] = truncated
            self._running[k] = False

    def _store(self, k: int, step: int, observation: Any) -> None:
        """Copy an observation into row k; ours fits."""
        nested.assign(self.obs, k, observation)
