"""Games of one scenario as a group."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.config import EnvConfig
from rollmill.envs.doom.blueprint import make_blueprint
from rollmill.envs.doom.game import DoomEnv, Moment
from rollmill.envs.group import EnvironmentFailed, StepResult
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
        shown = self.obs if isinstance(self.obs, dict) else {"image": self.obs}
        self._images, self._variables = list(shown["image"]), shown.get("variables")

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Let all engines play, and only then judge what they did.

        Engines share the core and leave its caches cold, so whatever is done between two of them costs several times
        what it costs in one go.
        """
        rows = np.flatnonzero(active).tolist()
        for k in rows:
            self._refuse_idle(k)
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        presses = [self._game(k).presses(action[k]) for k in rows]
        outcomes = [self._play(k, pressed) for k, pressed in zip(rows, presses, strict=True)]
        for k, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, EnvironmentFailed):
                self._save(k, "step", outcome, partial(self._advance_again, k, action[k]))
            else:
                self._take(k, action[k], outcome)
        return StepResult(self._reward, self._terminated, self._truncated)

    def _game(self, k: int) -> DoomEnv:
        return cast(DoomEnv, self._instances[k].env)

    def _play(self, k: int, presses: list[float]) -> Moment | EnvironmentFailed:
        """One decision of game k, drawn straight into its row."""
        PULSE.enter(STEP)
        try:
            return self._game(k).play(presses, self._images[k])
        except SignalExit:
            raise
        except Exception as error:
            name = self._instances[k].name
            return failed(f"{name} raised in step(): {type(error).__name__}: {error}", error)
        finally:
            PULSE.leave()

    def _take(self, k: int, action: Array, moment: Moment) -> None:
        """Store what a decision led to, without the checks that an environment of ours doesn't need."""
        instance, game = self._instances[k], self._game(k)
        self._reward[k], terminated, truncated, instance.info = game.judge(moment)
        if self._variables is not None:
            self._variables[k] = game.variables
        instance.keep(action)
        self._steps[k] += 1
        if terminated or truncated:
            self._terminated[k] = terminated
            self._truncated[k] = truncated
            self._running[k] = False
