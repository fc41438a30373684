"""A Doom scenario as a gymnasium environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollmill.types import Array
from rollmill_envs.doom.doom_spec import HEALTH, DoomSpec
from rollmill_envs.doom.engine import DoomEngine

TICS_PER_SECOND = 35
_PICTURE = "640x480"


class Moment(NamedTuple):
    """The outcome of one decision."""

    tics: int
    reward: float
    is_over: bool  # by the game itself
    variables: Any  # the game's; None where it has none, and after its end


class DoomEnv(gym.Env[Any, Any]):
    """One game; the observation belongs to it and is overwritten by the next step.

    Where the time limit ends an episode the observation is the true last one. Where the game itself does, the engine
    shows nothing any more, and the observation stays what it was a decision before.
    """

    render_mode = "rgb_array"

    def __init__(self, spec: DoomSpec, time_limit: int | None = None, pictures: bool = False) -> None:
        import cv2

        settings = spec.settings
        self._spec = spec
        self._time_limit = time_limit
        self._cv2, self._resize = cv2, cv2.resize
        self._interpolation = cv2.INTER_AREA if settings.resize == "area" else cv2.INTER_NEAREST
        self.presses = spec.actions.presses  # of an action: every button's state
        self._skip, self._limit = settings.frame_skip, spec.tics
        self._is_grey, self._has_variables = settings.grey, bool(settings.variables)
        self._size = (settings.width, settings.height)
        self._engine = DoomEngine(spec, settings.resolution)
        # Pictures for people come from a second game that is played in step: the engine has one screen only.
        self._cinema = self._second_engine() if pictures else None
        self._picture: Array = np.zeros((480, 640, 3), np.uint8)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND / settings.frame_skip}
        self.action_space = spec.actions.space
        shape = (settings.height, settings.width) if settings.grey else (settings.height, settings.width, 3)
        self._image = np.zeros(shape, np.uint8)
        self.variables = np.zeros(len(settings.variables), np.float32)
        image = gym.spaces.Box(0, 255, shape, np.uint8)
        variables = gym.spaces.Box(-np.inf, np.inf, self.variables.shape, np.float32)
        self.observation_space: gym.Space[Any] = (
            gym.spaces.Dict({"image": image, "variables": variables}) if settings.variables else image
        )
        self._is_whole = settings.resolution.lower() == f"{settings.width}x{settings.height}"
        self._is_resized_only = not settings.grey and not self._is_whole
        self._health_at = spec.variables.index(HEALTH) if spec.health_bonus else None
        self._latest: Any = None  # the variables of the game, as of the last step
        self._health = 0.0
        self._tics = 0
        self._decisions = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of a seed, or any; the engine alone draws, so `np_random` is not seeded."""
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        for engine in self._engines():
            engine.begin((seed ^ seed >> 32) & 0xFFFFFFFF)
        self._tics = self._decisions = 0
        state = self._engine.look()
        assert state is not None, "an episode that is over before it began"
        self._draw(state.screen_buffer, self._image)
        self._read(state.game_variables)
        return self._observed(), self.info()

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold the buttons of an action for `frame_skip` tics, or as many as the time limit leaves."""
        reward, terminated, truncated = self.judge(self.play(self.presses(action), self._image))
        return self._observed(), reward, terminated, truncated, self.info()

    def play(self, presses: list[float], image: Array) -> Moment:
        """The first half of a step, which is the engine's: hold buttons, and draw what follows.

        Written as one function: the engine leaves the CPU caches cold, so that every call is expensive.
        """
        tics, limit, engine = self._skip, self._limit, self._engine
        if limit and limit - self._tics < tics:
            tics = limit - self._tics
        reward = engine.game.make_action(presses, tics)
        if engine.is_deathmatch:
            engine.revive()
        state = engine.game.get_state()
        if self._cinema is not None:
            self._follow(presses, tics)
        if state is None:
            return Moment(tics, reward, True, None)
        # now, and without keeping the state: its screen is in the cache, and the next one's takes the same memory
        if self._is_resized_only:
            self._resize(state.screen_buffer, self._size, image, 0, 0, self._interpolation)
        else:
            self._draw(state.screen_buffer, image)
        return Moment(tics, reward, False, state.game_variables)

    def judge(self, moment: Moment) -> tuple[float, bool, bool]:
        """The second half, which is ours: reward and flags; `variables` and `info` are of this moment from here on."""
        tics, reward, is_over, variables = moment
        self._tics += tics
        self._decisions += 1
        truncated = self._tics == self._limit or self._decisions == self._time_limit
        if is_over:
            self._latest = None
            return reward, True, truncated
        if self._read(variables):
            reward += self._spec.health_bonus
        return reward, False, truncated

    def info(self) -> dict[str, Any]:
        """Tics since the start, and the game's variables unless it is over."""
        values = () if self._latest is None else zip(self._spec.variables, self._latest.tolist(), strict=True)
        return {"tics": self._tics, **dict(values)}

    def render(self) -> Any:
        """The screen in full size; after the game's end the last one that was drawn."""
        if self._cinema is not None and (state := self._cinema.look()) is not None:
            self._picture = state.screen_buffer
        return self._picture

    def close(self) -> None:
        """End the engine."""
        for engine in self._engines():
            engine.close()

    def _second_engine(self) -> DoomEngine:
        try:
            return DoomEngine(self._spec, _PICTURE)
        except BaseException:
            self._engine.close()
            raise

    def _engines(self) -> list[DoomEngine]:
        return [self._engine] if self._cinema is None else [self._engine, self._cinema]

    def _observed(self) -> Any:
        return {"image": self._image, "variables": self.variables} if self._has_variables else self._image

    def _follow(self, presses: list[float], tics: int) -> None:
        """The second game does the same."""
        assert self._cinema is not None
        self._cinema.game.make_action(presses, tics)
        if self._cinema.is_deathmatch:
            self._cinema.revive()

    def _draw(self, screen: Array, image: Array) -> None:
        """The screen as the agent sees it, straight into its place."""
        if self._is_grey:
            screen = self._cv2.cvtColor(screen, self._cv2.COLOR_RGB2GRAY)
        if self._is_whole:
            image[...] = screen
        else:
            self._resize(screen, self._size, image, 0, 0, self._interpolation)

    def _read(self, variables: Any) -> bool:
        """Store the game's variables; returns whether there is more health than before."""
        self._latest = variables
        if self._has_variables:
            self.variables[:] = variables[: len(self.variables)]
        if self._health_at is None:
            return False
        before, self._health = self._health, float(variables[self._health_at])
        return self._health > before
