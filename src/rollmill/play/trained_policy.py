"""A trained policy for use elsewhere: `policy(obs) -> action`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rollmill import nested, spaces
from rollmill.algorithms.policy import Policy
from rollmill.algorithms.registry import find_recipe
from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.errors import Refused
from rollmill.models.weights import load_weights
from rollmill.nested import Nested
from rollmill.persist.newest_weights import find_weights, run_of
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.settings import load_run_config
from rollmill.types import Array


class LoadedPolicy:
    """Decides greedily for one environment, or for a batch; remembers its recurrent state between calls."""

    def __init__(
        self, make: Callable[[int], Policy], env: EnvConfig, observation_space: Any, action_space: Any
    ) -> None:
        self._make = make  # a policy for a number of environments
        self.env = env  # that it was trained on
        self.observation_space, self.action_space = observation_space, action_space
        self._spec = spaces.observation_spec(observation_space)
        self._policy: Policy | None = None
        self._size = 0
        self._state: Nested = {}
        self._is_first = np.zeros(0, np.bool_)

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
        self._resize(len(nested.first_leaf(arrays)))
        assert self._policy is not None
        decision = self._policy.act(arrays, self._state, self._is_first, None)
        self._state, self._is_first = decision.state, np.zeros(self._size, np.bool_)
        scale = self._policy.network.scale
        chosen = decision.action if scale is None else scale(decision.action)
        action: Array = spaces.to_environment(self.action_space, chosen)
        return action[0] if is_single else action

    def _resize(self, size: int) -> None:
        if size != self._size:
            self._policy, self._size = self._make(size), size
            self._state, self._is_first = self._policy.initial_state(), np.ones(size, np.bool_)


def load(run: str | Path) -> LoadedPolicy:
    """The policy of a run, from its folder or from that of one of its checkpoints."""
    path = Path(run)
    folder = RunFolder(run_of(path))
    if not (folder.path / MARK).is_file():
        raise Refused(f"{path} is no run folder (it has no {MARK}); give the folder that `rollmill train` printed")
    config = load_run_config(folder.path).config
    # a run of a version that didn't keep its spaces: its environment is asked
    observation_space, action_space = folder.read_spaces() or check_group(config.env)[:2]
    recipe = find_recipe(config.algorithm.name)
    options = config.algorithm.network_options
    network = recipe.network(observation_space, action_space, config.model, seed=0, **options)
    try:
        load_weights(network, find_weights(path).arrays)
    except Refused as refusal:
        raise Refused(f"{path}: {refusal}") from None
    make = partial(recipe.policy_outside_training, network, config.algorithm)
    return LoadedPolicy(make, config.env, observation_space, action_space)


def _like(obs: Nested, spec: Nested) -> Nested:
    """Tuples as dicts with keys "0", "1", …, as the specs have them."""
    if isinstance(spec, dict) and isinstance(obs, tuple | list):
        return {str(i): _like(part, spec[str(i)]) for i, part in enumerate(obs)}
    if isinstance(spec, dict):
        return {key: _like(obs[key], part) for key, part in spec.items()}
    return obs
