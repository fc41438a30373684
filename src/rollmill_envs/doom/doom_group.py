"""Games of one scenario as a group."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvironmentFailed, StepResult
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.instance import failed
from rollmill.errors import SignalExit
from rollmill.launch.pulse import PULSE, STEP
from rollmill.types import Array
from rollmill_envs.doom.doom_spec import make_spec
from rollmill_envs.doom.game import DoomEnv, Moment


class DoomGroup(GymGroup):
    """K games, each with an engine of its own; a game whose engine dies is rebuilt and replayed.

    There are no snapshots: the engine can't save the state of its generators. Episodes are played again instead.
    """

    def __init__(self, config: EnvConfig, size: int, pictures: bool) -> None:
        spec = make_spec(config)
        self.frame_skip = spec.settings.frame_skip
        super().__init__(config.id, partial(DoomEnv, spec, config.time_limit, pictures), size)
        shown = self.obs if isinstance(self.obs, dict) else {"image": self.obs}
        self._images, self._variables = list(shown["image"]), shown.get("variables")

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Step all engines first, and only then compute rewards and flags.

        Engines share the core and leave its caches cold, so whatever is done between two of them costs several times
        what it costs in one go.
        """
        rows = np.flatnonzero(active).tolist()
        for k in rows:
            self._refuse_idle(k)
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        games = [cast(DoomEnv, self._instances[k].env) for k in rows]
        presses = [game.presses(action[k]) for k, game in zip(rows, games, strict=True)]
        outcomes: list[Moment | EnvironmentFailed] = []
        PULSE.enter(STEP)  # once: two stores per engine would cost too much
        try:
            for k, game, pressed in zip(rows, games, presses, strict=True):
                try:
                    outcomes.append(game.play(pressed, self._images[k]))
                except SignalExit:
                    raise
                except Exception as error:
                    what = f"{self._instances[k].name} raised in step(): {type(error).__name__}: {error}"
                    outcomes.append(failed(what, error))
        finally:
            PULSE.leave()
        for k, game, outcome in zip(rows, games, outcomes, strict=True):
            if isinstance(outcome, EnvironmentFailed):
                self._save(k, "step", outcome, partial(self._advance_again, k, action[k]))
            else:
                self._take(k, game, action[k], outcome)
        return StepResult(self._reward, self._terminated, self._truncated)

    def _take(self, k: int, game: DoomEnv, action: Array, moment: Moment) -> None:
        """Store what a decision led to, without the checks that an environment of ours doesn't need."""
        self._reward[k], terminated, truncated = game.judge(moment)
        if self._variables is not None:
            self._variables[k] = game.variables
        self._instances[k].keep(action)
        self._steps[k] += 1
        if terminated or truncated:
            self._terminated[k] = terminated
            self._truncated[k] = truncated
            self._running[k] = False

    def info(self, k: int) -> dict[str, Any]:
        """What the game says, put together only on request."""
        return cast(DoomEnv, self._instances[k].env).info()

    def _store(self, k: int, step: int, observation: Any) -> None:
        """Copy the observation of a reset into row k; ours fits."""
        nested.assign(self.obs, k, observation)
