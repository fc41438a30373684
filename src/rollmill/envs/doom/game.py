"""A Doom scenario as a gymnasium environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.random import SeedSequence

from rollmill.envs.doom.blueprint import HEALTH, Blueprint
from rollmill.envs.doom.engine import Engine
from rollmill.types import Array

TICS_PER_SECOND = 35
_PICTURE = "640x480"


class Moment(NamedTuple):
    """What came of one decision."""

    tics: int
    reward: float
    state: Any  # the engine's; None after the end of the game


class DoomEnv(gym.Env[Any, Any]):
    """One game; the observation belongs to it and is overwritten by the next step.

    Where the time limit ends an episode the observation is the true last one. Where the game itself does, the engine
    shows nothing any more, and the observation stays what it was a decision before.
    """

    render_mode = "rgb_array"

    def __init__(self, blueprint: Blueprint, time_limit: int | None = None, pictures: bool = False) -> None:
        import cv2

        settings = blueprint.settings
        self._blueprint = blueprint
        self._time_limit = time_limit
        self._cv2 = cv2
        self._interpolation = cv2.INTER_AREA if settings.resize == "area" else cv2.INTER_NEAREST
        self.presses = blueprint.actions.presses  # of an action: every button's state
        self._skip, self._limit = settings.frame_skip, blueprint.tics
        self._is_grey, self._has_variables = settings.grey, bool(settings.variables)
        self._size = (settings.width, settings.height)
        self._engine = Engine(blueprint, settings.resolution)
        # Pictures for people come from a second game that is played in step: the engine has one screen only.
        self._cinema = Engine(blueprint, _PICTURE) if pictures else None
        self._picture: Array = np.zeros((480, 640, 3), np.uint8)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND / settings.frame_skip}
        self.action_space = blueprint.actions.space
        shape = (settings.height, settings.width) if settings.grey else (settings.height, settings.width, 3)
        self._image = np.zeros(shape, np.uint8)
        self.variables = np.zeros(len(settings.variables), np.float32)
        image = gym.spaces.Box(0, 255, shape, np.uint8)
        variables = gym.spaces.Box(-np.inf, np.inf, self.variables.shape, np.float32)
        self.observation_space: gym.Space[Any] = (
            gym.spaces.Dict({"image": image, "variables": variables}) if settings.variables else image
        )
        self._is_whole = settings.resolution.lower() == f"{settings.width}x{settings.height}"
        self._health_at = blueprint.variables.index(HEALTH) if blueprint.health_bonus else None
        self._health = 0.0
        self._tics = 0
        self._decisions = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of a seed; without one, of a seed drawn from the last."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        engine_seed = int(SeedSequence(seed).generate_state(1)[0])
        for engine in self._engines():
            engine.begin(engine_seed)
        self._tics = self._decisions = 0
        state = self._engine.look()
        assert state is not None, "an episode that is over before it began"
        self._draw(state.screen_buffer, self._image)
        self._read(state)
        return self._observed(), self._told(state)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold the buttons of an action for `frame_skip` tics, or as many as the time limit leaves."""
        reward, terminated, truncated, info = self.judge(self.play(self.presses(action), self._image))
        return self._observed(), reward, terminated, truncated, info

    def play(self, presses: list[float], image: Array) -> Moment:
        """The first half of a step, which is the engine's: hold buttons, and draw what follows."""
        tics = self._skip if not self._limit else min(self._skip, self._limit - self._tics)
        reward, state = self._engine.play(presses, tics)
        if self._cinema is not None:
            self._cinema.play(presses, tics)
        if state is not None:
            self._draw(state.screen_buffer, image)
        return Moment(tics, reward, state)

    def judge(self, moment: Moment) -> tuple[float, bool, bool, dict[str, Any]]:
        """The second half, which is ours: reward, flags and info; `variables` are those of this moment from here on."""
        tics, reward, state = moment
        self._tics += tics
        self._decisions += 1
        truncated = self._tics == self._limit or self._decisions == self._time_limit
        if state is None:
            return reward, True, truncated, {"tics": self._tics}
        if self._read(state):
            reward += self._blueprint.health_bonus
        return reward, False, truncated, self._told(state)

    def render(self) -> Any:
        """The screen in full size; after the game's end the last one that was drawn."""
        if self._cinema is not None and (state := self._cinema.look()) is not None:
            self._picture = state.screen_buffer
        return self._picture

    def close(self) -> None:
        """End the engine."""
        for engine in self._engines():
            engine.close()

    def _engines(self) -> list[Engine]:
        return [self._engine] if self._cinema is None else [self._engine, self._cinema]

    def _observed(self) -> Any:
        return {"image": self._image, "variables": self.variables} if self._has_variables else self._image

    def _draw(self, screen: Array, image: Array) -> None:
        """The screen as the agent sees it, straight into its place."""
        if self._is_grey:
            screen = self._cv2.cvtColor(screen, self._cv2.COLOR_RGB2GRAY)
        if self._is_whole:
            image[...] = screen
        else:
            self._cv2.resize(screen, self._size, image, interpolation=self._interpolation)

    def _read(self, state: Any) -> bool:
        """Take note of the game's variables: whether there is more health than before."""
        if self._has_variables:
            self.variables[:] = state.game_variables[: len(self.variables)]
        if self._health_at is None:
            return False
        before, self._health = self._health, float(state.game_variables[self._health_at])
        return self._health > before

    def _told(self, state: Any) -> dict[str, Any]:
        names = self._blueprint.variables
        values = zip(names, state.game_variables.tolist(), strict=True) if names else ()
        return {"tics": self._tics, **dict(values)}
