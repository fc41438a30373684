"""From what a user names to who plays: `policy`, `random`, `constant:K`, `scripted:NAME`.

make = policy_player("runs/mine", greedy=False)     # a run or a checkpoint → MakePlayer
player = make(group.size)
action = player(group, reset)

To get newer weights now and then keep a `PolicySource` and call `refresh` between episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rollmill import spaces
from rollmill.algorithms.registry import find_recipe
from rollmill.config.base import shown
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import scripts_of
from rollmill.envs.make import make_group
from rollmill.envs.player import MakePlayer, Player
from rollmill.errors import Refused, nearest
from rollmill.models.weights import load_weights, weights_spec
from rollmill.play.players import ConstantPlayer, GreedyPlayer, RandomPlayer, SamplingPlayer
from rollmill.play.subject import Overrides, Subject, open_subject
from rollmill.settings import ExperimentConfig
from rollmill.types import Array

LEVELS = ("low", "zero", "high")  # constant actions of a Box by name


@dataclass(frozen=True)
class PlayerSpec:
    """Who plays, in words that another process understands too."""

    kind: Literal["policy", "random", "constant", "scripted"]
    detail: str = ""  # "greedy" or "sample"; the constant action; the script's name

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind


class PolicySource:
    """The network of a run, which makes players."""

    def __init__(
        self, config: ExperimentConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> None:
        self._config = config
        self._recipe = find_recipe(config.algorithm.name)
        self._network = self._recipe.network(
            observation_space,
            action_space,
            config.model,
            seed=0,
            **config.algorithm.network_options,
        )

    def refresh(self, weights: Mapping[str, Array], name: str | Path) -> None:
        """Let every player that was made, and those to come, decide with these weights; `name` is for the refusal."""
        wanted = {key: (spec.shape, spec.dtype) for key, spec in weights_spec(self._network).items()}
        given = {key: (array.shape, array.dtype.name) for key, array in weights.items()}
        for key in [*wanted, *given]:
            if wanted.get(key) != given.get(key):
                there, here = (_described(table.get(key)) for table in (given, wanted))
                raise Refused(
                    f"{name}: its weights don't fit env.id={self._config.env.id}: {key} is {there} there and {here} "
                    "here; play the environment that it was trained on"
                )
        load_weights(self._network, weights)

    def player(self, size: int, greedy: bool = True, seed: int = 0) -> Player:
        """A player for a group of this size; `seed` counts only where the caller passes no seeds of episodes."""
        make = partial(self._recipe.policy_outside_training, self._network, self._config.algorithm)
        if greedy:
            return GreedyPlayer(make(size))
        return SamplingPlayer(make(size), make(1), size, seed)


def policy_source(subject: Subject) -> PolicySource:
    """The network of a run with its present weights; the environment is made once to know its spaces."""
    group = make_group(subject.config.env, 1)
    try:
        source = PolicySource(subject.config, group.observation_space, group.action_space)
    finally:
        group.close()
    weights = subject.read_weights()
    source.refresh(weights.arrays, weights.path)
    return source


def policy_player(path: str | Path, overrides: Overrides = (), *, greedy: bool = True, seed: int = 0) -> MakePlayer:
    """Players with the policy of a run or of one of its checkpoints."""
    return partial(policy_source(open_subject(path, overrides)).player, greedy=greedy, seed=seed)


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


def _described(spec: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if spec is None else f"{spec[1]} {'×'.join(map(str, spec[0])) or 'scalar'}"
