"""A first agent that has learned already: its actions are added to those of the agent that learns on top of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.config.user_code import load_object
from rollmill.envs.families import read_args
from rollmill.errors import Absent, Refused
from rollmill.types import Array
from rollmill_envs.oscillator.config import SETTINGS, OscillatorConfig
from rollmill_envs.oscillator.stimulus import Floats, amplitude_of

_BATCH = 16  # rows per decision, always: a row's result must not depend on the size of the group


class FrozenAgent:
    """The greedy policy of a run, deciding for every row from the same observation as the agent on top."""

    def __init__(self, env_id: str, settings: OscillatorConfig, observation_space: gym.Space[Any]) -> None:
        path = str(settings.frozen)
        if not Path(path).exists():  # checked before torch is imported
            raise Absent(f"env.args.frozen={path}: no such folder; give a run or one of its checkpoints")
        # by name, because environments are a layer below policies; only this one needs a trained run
        self._policy: Any = load_object("rollmill.play.trained_policy:load", "env.args.frozen")(path)
        seen = self._policy.observation_space
        if seen.shape != observation_space.shape:
            what = f"its agent sees {seen.shape}, this environment shows {observation_space.shape}"
            raise Refused(f"env.args.frozen={path}: {what}; freeze a run with the same window")
        played = self._policy.env
        own = read_args(played, SETTINGS[played.id]) if played.id in SETTINGS else None
        if own is None or (played.id, own.observe) != (env_id, settings.observe):
            what = played.id if own is None else f"the mean of {own.observe} in {played.id}"
            raise Refused(f"env.args.frozen={path}: its agent was trained on {what}; freeze one that saw the same")
        self._limit = own.action_limit  # the levels of a discrete action are within its own limits, not within ours
        if self._policy.is_recurrent:
            raise Refused(f"env.args.frozen={path}: its agent has memory; freeze a feed-forward one")
        self._seen = np.zeros((_BATCH, *observation_space.shape), np.float32)  # type: ignore[misc]

    def amplitudes(self, obs: Array) -> Floats:
        """What the agent would do, [K]."""
        parts = []
        for start in range(0, len(obs), _BATCH):
            rows = obs[start : start + _BATCH]
            self._seen[: len(rows)] = rows
            action = np.asarray(self._policy(self._seen))[: len(rows)]
            parts.append(amplitude_of(action, self._policy.action_space, self._limit))
        return np.concatenate(parts)
