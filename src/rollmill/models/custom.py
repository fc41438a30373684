"""A model of the user's own: `model: {file: my_net.py, class: MyNet, args: {...}}`.

The contract: `MyNet(observation_space, action_space, **args)` is a torch module with

    forward(obs, state, reset) -> (features, state)      [T, B, …], {…: [B, …]}, bool [T, B] -> float32 [T, B, F], …
    initial_state(batch) -> {…: [batch, …]}              only if it has memory

`obs` is a tensor or, for dict observations, a dict of them; `reset` is True where an observation is the first of its
episode. Without memory `state` is {} and steps come in shuffled order. The heads are ours.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rollmill import nested
from rollmill.config.user_code import load_object
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.encoders import Encoder, Encoding
from rollmill.nested import Nested
from rollmill.spaces import observation_leaf_space, observation_spec
from rollmill.types import ArraySpec

_STEPS, _BATCH = 2, 4  # of the trial; different, so that swapped axes are seen
_BOUND = 100.0  # spaces that mean "any number" are often bounded by the largest float, where every network overflows


class CustomEncoder(Encoder):
    """The user's module in the place of torso and memory."""

    def __init__(self, module: nn.Module, out_features: int, state_spec: Nested) -> None:
        super().__init__()
        self.module = module
        self.out_features = out_features
        self.state_spec = state_spec

    def initial_state(self, batch: int) -> Nested:
        """As the user's module says, which needn't be zeros."""
        return self.module.initial_state(batch) if self.state_spec else {}  # type: ignore[operator]

    def forward(self, obs: Nested, state: Nested, reset: Tensor | None) -> Encoding:
        """The user's features for both heads."""
        if reset is None:  # steps without their order: none of them is known to begin an episode
            leaf = nested.first_leaf(obs)
            reset = torch.zeros(leaf.shape[:2], dtype=torch.bool, device=leaf.device)
        features, state = self.module(obs, state, reset)
        flat = features.flatten(0, 1)
        return Encoding(flat, flat, state)


def build_custom(observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModelConfig) -> CustomEncoder:
    """Load, construct and try the user's model; whatever doesn't fit is refused."""
    setting = config.setting
    if config.file is not None:
        factory = load_object(f"{config.file}:{config.class_}", "model.file")
    else:
        factory = load_object(str(config.module), "model.module")
    module = guarded(setting, "the constructor", lambda: factory(observation_space, action_space, **config.args))
    if not isinstance(module, nn.Module):
        raise Refused(f"{setting}: {factory.__name__} makes a {type(module).__name__}; derive it from torch.nn.Module")

    state = _initial_state(module, setting)
    state_spec = nested.map_leaves(
        lambda leaf: ArraySpec(leaf.shape[1:], str(leaf.dtype).removeprefix("torch.")), state
    )
    obs = sample_observations(observation_space, _STEPS, _BATCH, seed=0)
    reset = torch.zeros(_STEPS, _BATCH, dtype=torch.bool)
    was_training = module.training
    module.eval()  # the trial must leave no trace in running statistics
    with torch.no_grad():
        output = guarded(setting, "forward()", lambda: module(obs, state, reset))
    module.train(was_training)
    return CustomEncoder(module, _feature_count(output, state, setting), state_spec)


def guarded(setting: str, what: str, call: Callable[[], Any]) -> Any:
    """The call's result; what the user's code raises is refused with the line where it happened."""
    try:
        return call()
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)
        # the deepest line outside torch: that is the user's, even if it called one of torch's functions
        own = [entry for entry in frame if f"{Path(torch.__file__).parent}/" not in entry.filename][-1]
        message = " ".join(str(error).split())
        raise Refused(
            f"{setting}: {what} raised {type(error).__name__}: {message} ({own.filename}:{own.lineno}); fix the model"
        ) from error


def _initial_state(module: nn.Module, setting: str) -> dict[str, Any]:
    """The trial's state, {} for a model without memory."""
    initial_state: Any = getattr(module, "initial_state", None)
    if initial_state is None:
        return {}
    state = guarded(setting, "initial_state()", lambda: initial_state(_BATCH))
    if not isinstance(state, dict):
        raise Refused(f"{setting}: initial_state() gives a {type(state).__name__}; give a dict of tensors [batch, …]")
    for path, leaf in nested.leaves(state):
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (_BATCH,):
            raise Refused(
                f"{setting}: initial_state({_BATCH})['{path}'] is {described(leaf)}; give a tensor [batch, …]"
            )
    return state


def _feature_count(output: Any, state: Nested, setting: str) -> int:
    """F, once the trial's output is known to keep the contract."""
    if not isinstance(output, tuple) or len(output) != 2:
        raise Refused(f"{setting}: forward() gives {described(output)}; return (features, state)")
    features, after = output
    if not isinstance(features, Tensor) or features.ndim != 3 or features.shape[:2] != (_STEPS, _BATCH):
        raise Refused(
            f"{setting}: forward() gives features of {described(features)} for observations of {_STEPS} steps × "
            f"{_BATCH} environments; return a tensor [T, B, F] = [{_STEPS}, {_BATCH}, F]"
        )
    if features.dtype != torch.float32:
        raise Refused(f"{setting}: forward() gives features of {described(features)}; return float32")
    before, now = ({path: described(leaf) for path, leaf in nested.leaves(s)} for s in (state, after))
    if before != now:
        remedy = (
            "return the state as initial_state() lays it out" if before else "add initial_state(batch), or return {}"
        )
        raise Refused(f"{setting}: forward() turns the state {before} into {now}; {remedy}")
    return features.shape[2]


def described(value: Any) -> str:
    """A value by type and shape, e.g. `float32 [2, 4, 64]`."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def sample_observations(space: gym.Space[Any], steps: int, batch: int, seed: int) -> Nested:
    """Tensors [T, B, …] as a network gets them; the space's own generator isn't touched."""
    private = deepcopy(space)
    private.seed(seed)
    rng = np.random.default_rng(seed)
    rows = [_sample(private, rng) for _ in range(steps * batch)]

    def join(spec: Any, *leaves: Any) -> Tensor:
        stacked = np.stack([np.asarray(leaf, dtype=spec.dtype) for leaf in leaves])
        return torch.from_numpy(stacked.reshape(steps, batch, *spec.shape))

    return nested.map_leaves(join, observation_spec(space), *rows)


def _sample(space: gym.Space[Any], rng: np.random.Generator) -> Nested:
    children = observation_leaf_space(space)
    if isinstance(children, dict):
        return {key: _sample(child, rng) for key, child in children.items()}
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return rng.uniform(np.clip(space.low, -_BOUND, _BOUND), np.clip(space.high, -_BOUND, _BOUND))
    return space.sample()
