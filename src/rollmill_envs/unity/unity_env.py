"""A Unity build with one agent as a gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rollmill.errors import Refused, RollmillError
from rollmill.types import Array
from rollmill_envs.unity.config import UnityConfig
from rollmill_envs.unity.rendering import Looks, look_at

if TYPE_CHECKING:
    from rollmill_envs.unity.unity_engine import UnityEngine

Info = dict[str, Any]

_SEED_RANGE = 2**24  # a float parameter holds whole numbers exactly up to here
_NO_PICTURE = "the build has no visual observation to show"


class UnityEnv(gym.Env[Any, Any]):
    """One build in a process of its own.

    Unity takes a seed only when it starts, so the build is started by the first `reset`, with that episode's seed.
    With known `looks` it is made without starting anything.
    """

    render_mode = "rgb_array"

    def __init__(self, path: Path, settings: UnityConfig, looks: Looks | None = None) -> None:
        self._path, self._settings = path, settings
        self._engine: UnityEngine | None = None
        self._shown: Any = None
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": settings.decisions_per_second}
        self.looks = self._look() if looks is None else looks
        self.observation_space, self.action_space = self.looks.observation_space, self.looks.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Begin an episode in the scene; starts the build if it isn't running."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        if self._settings.restart:
            self.close()
        engine = self._engine or self._start(seed if self._settings.seed is None else self._settings.seed)
        if self._settings.seed_parameter is not None:
            engine.parameters.set_float_parameter(self._settings.seed_parameter, float(seed % _SEED_RANGE))
        engine.reset()
        deadline = monotonic() + self._settings.timeout
        while True:
            decision, _ = engine.get_steps(self.looks.behaviour)
            _refuse_crowd(self.looks.behaviour, len(decision))
            if len(decision) == 1:
                return self._show(decision), _mask(decision)
            self._go_on(engine, deadline, "a reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Send the decision, and let the scene run until the agent asks for the next one or its episode ends."""
        from rollmill_envs.unity.unity_engine import ActionTuple

        engine = self._engine
        if engine is None:
            raise RollmillError("the build isn't running: reset the environment first")
        row = np.asarray(action).reshape(1, -1)
        if isinstance(self.action_space, gym.spaces.Box):
            given = ActionTuple(continuous=row.astype(np.float32))
        else:
            given = ActionTuple(discrete=row.astype(np.int32))
        engine.set_actions(self.looks.behaviour, given)
        deadline = monotonic() + self._settings.timeout
        while True:
            self._go_on(engine, deadline, "a step")
            decision, ending = engine.get_steps(self.looks.behaviour)
            # together they may be two: an agent that has ended shows its next episode at once
            _refuse_crowd(self.looks.behaviour, max(len(decision), len(ending)))
            if len(ending):
                is_cut = bool(ending.interrupted[0])  # by the agent's Max Step
                return self._show(ending), _reward(ending), not is_cut, is_cut, {}
            if len(decision):
                return self._show(decision), _reward(decision), False, False, _mask(decision)

    def render(self) -> Array:
        """What the agent's first camera sees."""
        picture = None if self._shown is None else self.looks.picture(self._shown)
        if picture is None:
            raise RollmillError(_NO_PICTURE)
        return picture

    def close(self) -> None:
        """End the build."""
        if self._engine is not None:
            self._engine.end()
            self._engine = None

    def _look(self) -> Looks:
        """Start the build to read its behaviours; a build with a fixed seed is kept and played afterwards."""
        engine = self._start(self._settings.seed or 0)
        is_good = False
        try:
            engine.reset()  # Unity describes a behaviour only once an agent of it asks for a decision
            looks = look_at(_plain(engine.behavior_specs), self._settings)
            decision, _ = engine.get_steps(looks.behaviour)
            _refuse_crowd(looks.behaviour, len(decision))
            if len(decision):
                looks.observe([sensor[0] for sensor in decision.obs])  # refuses what isn't as the settings say
            is_good = True
            return looks
        finally:
            if not is_good or self._settings.seed is None:
                self.close()

    def _start(self, seed: int) -> UnityEngine:
        """Start the build, or refuse it in one line."""
        from rollmill_envs.unity.unity_engine import BuildEnded, NoAnswer, UnityEngine, UnityException

        where = f"env.args.build={self._settings.build}"
        try:
            self._engine = UnityEngine(self._path, self._settings, seed % 2**31)
        except NoAnswer as error:
            remedy = "see whether it starts by itself, or raise env.args.timeout"
            raise Refused(f"{where}: {error} (env.args.timeout={self._settings.timeout:g}); {remedy}") from error
        except BuildEnded as error:
            raise Refused(f"{where}: before it connected, {error}") from error
        except UnityException as error:
            raise Refused(f"{where}: {' '.join(str(error).split())}") from error
        return self._engine

    def _go_on(self, engine: UnityEngine, deadline: float, what: str) -> None:
        """One exchange of messages; other agents of the scene may be answered several times before ours asks."""
        if monotonic() > deadline:
            limit = self._settings.timeout
            raise RollmillError(
                f"the agent asked for no decision within {limit:g} seconds of {what} (env.args.timeout)"
            )
        engine.step()

    def _show(self, steps: Any) -> Any:
        self._shown = self.looks.observe([sensor[0] for sensor in steps.obs])
        return self._shown


def _refuse_crowd(behaviour: str, agents: int) -> None:
    if agents > 1:
        what = f"{agents} agents ask for decisions at once"
        remedy = "keep one in the scene, and use env.group_size for more"
        raise Refused(f"env.args.behaviour={behaviour}: {what}; {remedy}")


def _plain(specs: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): specs[name] for name in specs}


def _reward(steps: Any) -> float:
    return float(steps.reward[0]) + float(steps.group_reward[0])


def _mask(steps: Any) -> Info:
    """Which actions the scene forbids just now, by branch; nothing where it forbids none."""
    masks = steps.action_mask
    if masks is None or not any(mask[0].any() for mask in masks):
        return {}
    return {"forbidden": [mask[0].tolist() for mask in masks]}
