"""Players by name: `policy`, `random`, `constant:K`, `scripted:NAME`; and those that a player is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rollmill import spaces
from rollmill.config.base import shown
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import scripts_of
from rollmill.envs.player import MakePlayer
from rollmill.errors import Refused, nearest
from rollmill.play.players import ConstantPlayer, RandomPlayer
from rollmill.play.trained_policy import PolicySource
from rollmill.types import Array

LEVELS = ("low", "zero", "high")  # constant actions of a Box by name
MOST_CONSTANTS = 18  # actions up to which each is played for itself: as many as an Atari joystick has


@dataclass(frozen=True)
class PlayerSpec:
    """The name of a player, which another process understands too."""

    kind: Literal["policy", "random", "constant", "scripted"]
    detail: str = ""  # "greedy" or "sample"; the constant action; the script's name

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind


def parse_player(text: str, env: EnvConfig, space: gym.Space[Any]) -> PlayerSpec:
    """What `--policy` names, checked against the environment."""
    kind, _, detail = text.partition(":")
    if kind == "random" and not detail:
        return PlayerSpec("random")
    if kind == "constant":
        action = constant_action(detail, space)
        if not isinstance(space, gym.spaces.Box):  # "01" is the same player as "1"
            detail = ",".join(map(str, np.atleast_1d(action).tolist()))
        return PlayerSpec("constant", detail)
    if kind == "scripted":
        scripts = list(scripts_of(env))
        if detail not in scripts:
            remedy = nearest(detail, scripts) if scripts else "this environment has none"
            raise Refused(f"--policy {text}: no such script; {remedy}")
        return PlayerSpec("scripted", detail)
    known = ["random", "constant:K", *(f"scripted:{name}" for name in scripts_of(env))]
    raise Refused(f"--policy {text} is unknown; {nearest(text, known)}")


def baselines_of(env: EnvConfig, space: gym.Space[Any]) -> list[PlayerSpec]:
    """All players to compare with: chance, the environment's scripts, each constant action."""
    scripts = [PlayerSpec("scripted", name) for name in scripts_of(env)]
    return [PlayerSpec("random"), *scripts, *(PlayerSpec("constant", detail) for detail in _constants(space))]


def _constants(space: gym.Space[Any]) -> list[str]:
    if isinstance(space, gym.spaces.Box):
        return list(LEVELS)
    if isinstance(space, gym.spaces.Discrete):
        return [str(number) for number in range(int(space.n))] if space.n <= MOST_CONSTANTS else []
    if isinstance(space, gym.spaces.MultiDiscrete) and np.prod(space.nvec) <= MOST_CONSTANTS:
        return [",".join(map(str, index)) for index in np.ndindex(*space.nvec.tolist())]
    return []


def make_player(
    spec: PlayerSpec, env: EnvConfig, space: gym.Space[Any], source: PolicySource | None, seed: int
) -> MakePlayer:
    """Players of a kind; `source` is needed for policies alone."""
    if spec.kind == "policy":
        assert source is not None, "a policy without its run"
        return partial(source.player, greedy=spec.detail == "greedy", seed=seed)
    if spec.kind == "scripted":
        return partial(scripts_of(env)[spec.detail], env)
    if spec.kind == "constant":
        return partial(ConstantPlayer, constant_action(spec.detail, space))
    return partial(RandomPlayer, space, seed=seed)


def constant_action(text: str, space: gym.Space[Any]) -> Array:
    """The action that `constant:TEXT` means, as an agent stores it.

    A number for Discrete (counted from 0) and Box (every component), a list with commas for several components;
    low, zero and high for Box.
    """
    spec, words = spaces.action_spec(space), text.split(",")
    if isinstance(space, gym.spaces.Box):
        if text in LEVELS:
            return _level(text, space)
        numbers = _numbers(text, words, float, f"a number, one per component, or {', '.join(LEVELS)}")
        if len(numbers) not in (1, int(np.prod(spec.shape))):
            raise Refused(f"--policy constant:{text}: {len(numbers)} numbers where an action has shape {spec.shape}")
        action = np.broadcast_to(np.reshape(numbers, spec.shape) if len(numbers) > 1 else numbers[0], spec.shape)
        if not np.all((action >= space.low) & (action <= space.high)):  # NaN is neither
            bounds = f"{shown(float(space.low.min()))} to {shown(float(space.high.max()))}"
            raise Refused(f"--policy constant:{text} is outside of the actions, {bounds}; choose one inside")
        return action.astype(spec.dtype)
    choices = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in space.nvec]  # type: ignore[attr-defined]
    numbers = _numbers(text, words, int, "the number of an action" if len(choices) == 1 else "numbers with commas")
    if len(numbers) != len(choices):
        raise Refused(f"--policy constant:{text}: {len(numbers)} numbers where an action has {len(choices)}")
    for number, n in zip(numbers, choices, strict=True):
        if not 0 <= number < n:
            raise Refused(f"--policy constant:{text}: there is no action {number}; choose from 0 to {n - 1}")
    return np.array(numbers if spec.shape else numbers[0], spec.dtype)


def _level(name: str, space: gym.spaces.Box) -> Array:
    """The corner or the middle of a Box; an open side counts as ±1."""
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    level = {"low": low, "zero": np.clip(0.0, low, high), "high": high}[name]
    return np.broadcast_to(level, space.shape).astype(np.float32)


def _numbers(text: str, words: list[str], convert: type[int] | type[float], wanted: str) -> list[Any]:
    try:
        return [convert(word) for word in words]
    except ValueError:
        raise Refused(f"--policy constant:{text} names no action; give {wanted}") from None
