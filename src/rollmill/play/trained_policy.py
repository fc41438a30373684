"""Trained policies: the run or checkpoint that a path means, its network, and `load` for use elsewhere.

policy = load("runs/mine")
action = policy(obs)

To get newer weights now and then keep a `PolicySource` and call `refresh` between episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill import nested, spaces
from rollmill.algorithms.policy import Policy
from rollmill.algorithms.registry import find_recipe
from rollmill.config.load import Overrides
from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.envs.player import Player
from rollmill.errors import Refused, nearest
from rollmill.models.weights import load_weights, weights_spec
from rollmill.nested import Nested
from rollmill.persist.newest_weights import Weights, find_weights, run_of
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.play.players import EpisodeDraws, PolicyPlayer
from rollmill.settings import ExperimentConfig, load_run_config
from rollmill.types import Array


@dataclass(frozen=True)
class Subject:
    """A run, or one of its checkpoints."""

    path: Path  # as it was named
    run: Path
    config: ExperimentConfig  # of the run, with the environment as it is to be played

    def read_weights(self) -> Weights:
        """The weights as they are now: of the checkpoint, or the newest of the run, which may still be training."""
        return find_weights(self.path)


def open_subject(path: str | Path, overrides: Overrides = ()) -> Subject:
    """Find the run that a path means; overrides may change the environment and nothing else."""
    path = Path(path)
    run = run_of(path)
    if not (run / MARK).is_file():
        raise Refused(_no_run(path))
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith("env."):
            raise Refused(f"{key} can't be changed for a policy that is trained, only env.*; leave it out")
        if key == "env.atari.preset":  # the run's config has all values written out, and those win
            raise Refused(f"{key} changes nothing in a run; change its values instead, such as env.atari.sticky=0.25")
    return Subject(path, run, load_run_config(run, overrides).config)


class PolicySource:
    """The network of a run, which makes players."""

    def __init__(
        self, config: ExperimentConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> None:
        self._config = config
        self._recipe = find_recipe(config.algorithm.name)
        options = config.algorithm.network_options
        self._network = self._recipe.network(observation_space, action_space, config.model, seed=0, **options)

    def refresh(self, weights: Mapping[str, Array], name: str | Path) -> None:
        """Let every player that was made, and those to come, decide with these weights; `name` is for the refusal."""
        wanted = {key: (spec.shape, spec.dtype) for key, spec in weights_spec(self._network.state_dict()).items()}
        given = {key: (array.shape, array.dtype.name) for key, array in weights.items()}
        for key in [*wanted, *given]:
            if wanted.get(key) != given.get(key):
                there, here = (_described(table.get(key)) for table in (given, wanted))
                raise Refused(
                    f"{name}: its weights don't fit env.id={self._config.env.id}: {key} is {there} there and {here} "
                    "here; play the environment that it was trained on"
                )
        load_weights(self._network, weights)

    def policy(self, size: int) -> Policy:
        """The policy for so many environments."""
        return self._recipe.policy_outside_training(self._network, self._config.algorithm, size)

    def player(self, size: int, greedy: bool = True, seed: int = 0) -> Player:
        """A player for a group of this size; `seed` counts only where the caller passes no seeds of episodes."""
        if greedy:
            return PolicyPlayer(self.policy(size))
        single = self.policy(1)  # noise is drawn for one row at a time
        draws = EpisodeDraws(lambda rng, steps: single.noise(rng, steps)[:, 0], size, seed)
        return PolicyPlayer(self.policy(size), draws)


class LoadedPolicy:
    """Decides greedily for one environment, or for a batch; remembers its recurrent state between calls."""

    def __init__(
        self, make: Callable[[int], Policy], env: EnvConfig, observation_space: Any, action_space: Any
    ) -> None:
        self._make = make  # a policy for a number of environments
        self.env = env  # that it was trained on
        self.observation_space, self.action_space = observation_space, action_space
        self._spec = spaces.observation_spec(observation_space)
        self._player: PolicyPlayer | None = None
        self._is_first = np.zeros(0, np.bool_)  # by row

    def __repr__(self) -> str:
        return f"LoadedPolicy({self.env.id!r})"

    @property
    def is_recurrent(self) -> bool:
        """Whether what it decides depends on what it saw before."""
        return any(True for _ in nested.leaves(self._make(1).initial_state()))

    def reset(self) -> None:
        """Forget what was seen: the next observation is the first of an episode."""
        self._is_first[:] = True

    def __call__(self, obs: Nested) -> Any:
        """The action for one observation of `observation_space`, or for a batch of them (one more leading axis)."""
        arrays = nested.map_leaves(lambda leaf, spec: np.asarray(leaf, spec.dtype), _like(obs, self._spec), self._spec)
        for (path, leaf), (_, spec) in zip(nested.leaves(arrays), nested.leaves(self._spec), strict=True):
            if leaf.shape[leaf.ndim - len(spec.shape) :] != spec.shape or leaf.ndim > len(spec.shape) + 1:
                what = f"observation {path}".strip()
                raise ValueError(f"{what} has shape {leaf.shape}; the policy takes {spec.shape}, or a batch of them")
        is_single = nested.first_leaf(arrays).ndim == len(nested.first_leaf(self._spec).shape)
        if is_single:
            arrays = nested.map_leaves(lambda leaf: leaf[None], arrays)
        size = len(nested.first_leaf(arrays))
        if self._player is None or size != len(self._is_first):
            self._player, self._is_first = PolicyPlayer(self._make(size)), np.ones(size, np.bool_)
        chosen = self._player.decide(arrays, self._is_first)
        self._is_first = np.zeros(size, np.bool_)
        action: Array = spaces.to_environment(self.action_space, chosen)
        return action[0] if is_single else action


def load(run: str | Path) -> LoadedPolicy:
    """The policy of a run, from its folder or from that of one of its checkpoints."""
    subject = open_subject(run)
    config = subject.config
    # a run of a version that didn't keep its spaces: its environment is asked
    observation_space, action_space = RunFolder(subject.run).read_spaces() or check_group(config.env)[:2]
    source = PolicySource(config, observation_space, action_space)
    source.refresh(subject.read_weights().arrays, subject.path)
    return LoadedPolicy(source.policy, config.env, observation_space, action_space)


def _no_run(path: Path) -> str:
    if path.is_dir():
        return f"{path} is neither a run (it has no {MARK}) nor a checkpoint; give a folder that `rollmill train` made"
    runs = [folder.name for folder in path.parent.glob("*") if (folder / MARK).is_file()]
    remedy = nearest(path.name, runs) if runs else "give a folder that `rollmill train` made"
    return f"{path}: no such run or checkpoint; {remedy}"


def _described(spec: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if spec is None else f"{spec[1]} {'×'.join(map(str, spec[0])) or 'scalar'}"


def _like(obs: Nested, spec: Nested) -> Nested:
    """Tuples as dicts with keys "0", "1", …, as the specs have them."""
    if isinstance(spec, dict) and isinstance(obs, tuple | list):
        return {str(i): _like(part, spec[str(i)]) for i, part in enumerate(obs)}
    if isinstance(spec, dict):
        return {key: _like(obs[key], part) for key, part in spec.items()}
    return obs
