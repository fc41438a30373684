"""Actions of a bounded Box are scaled to their bounds: what is stored, what the environment gets, and old runs."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

import rollmill
from rollmill.actors.episodes import Episodes
from rollmill.algorithms.policy import PolicyContext, StochasticPolicy
from rollmill.envs.config import EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network
from rollmill.resuming import identity
from rollmill.settings import load_config, load_run_config
from rollmill.spaces import action_scale, to_environment
from rollmill.types import AssemblerSpec

BOX = gym.spaces.Box(np.array([-3, 100], np.float32), np.array([7, 900], np.float32))
QUIET = {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0, "baseline_episodes": 0}
RUN = {
    "env": {"id": "probe/continuous", "args": {"low": [-3, 100], "high": [7, 900]}, "group_size": 4},
    "algorithm": {"name": "ppo", "unroll": 8, "minibatch": 32, "epochs": 1},
    "train": {"steps": 64},
    "observe": QUIET,
}


def test_minus_one_and_one_are_the_bounds():
    # middle (2, 500), half (5, 400)
    scale = action_scale(BOX)
    wanted = [[-3, 100], [2, 500], [4.5, 300], [7, 900]]
    assert scale(np.array([[-1, -1], [0, 0], [0.5, -0.5], [1, 1]], np.float32)).tolist() == wanted
    assert to_environment(BOX, scale(np.array([9, -9], np.float32))).tolist() == [7, 100]  # clipped, as before


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1, 1, (3,)),
        gym.spaces.Box(-np.inf, np.inf, (3,)),
        gym.spaces.Box(0, np.inf, (3,)),
        gym.spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (3,)),  # which stands for infinity
        gym.spaces.Discrete(3),
    ],
)
def test_without_finite_bounds_or_with_those_of_one_nothing_is_scaled(space):
    assert action_scale(space) is None


def test_a_component_without_bounds_keeps_its_units():
    space = gym.spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 10], np.float32))
    assert action_scale(space)(np.array([3, 0.5], np.float32)).tolist() == [3, 7.5]


class Listening(gym.Env):
    """Keeps every action that it is given."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), BOX

    def __init__(self):
        self.taken = []

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken.append(action.tolist())
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_the_environment_gets_scaled_and_clipped_actions_and_the_density_is_of_the_stored_ones():
    network = build_network(Listening.observation_space, BOX, ModelConfig(hidden=(4,)), seed=1)
    policy, envs = StochasticPolicy(network, PolicyContext(None, 2)), []
    group = GymGroup("listening", lambda: envs.append(Listening()) or envs[-1], 2)
    group.reset(np.ones(2, bool), np.zeros(2, np.int64))
    episodes = Episodes(group, EnvConfig(id="x"), AssemblerSpec("unroll", 4), 1, 0, network.scale)
    obs, reset = episodes.begin()
    decision = policy.act(obs, {}, reset, policy.noise(np.random.default_rng(0), 1)[0])
    episodes.step(decision.action)

    wanted = np.clip(np.array([2, 500]) + np.array([5, 400]) * decision.action, BOX.low, BOX.high)
    taken = [env.taken[-1] for env in envs if env.taken]
    np.testing.assert_allclose(taken, wanted, rtol=1e-6)
    mean = network(torch.from_numpy(obs).unsqueeze(0), {}, None).params[0, :, :2].detach()
    density = torch.distributions.Normal(mean, 1.0).log_prob(torch.from_numpy(decision.action)).sum(-1)
    np.testing.assert_allclose(decision.records["log_prob"], density, rtol=1e-5)


def test_a_loaded_policy_decides_in_the_units_of_the_environment(tmp_path):
    run = rollmill.train(RUN, run=tmp_path / "run")
    action = run.policy()(np.array([0.3, -0.2], np.float32))
    assert BOX.contains(action)
    assert abs(action[1] - 500) < 100  # a fresh policy is near 0, the middle of the range


def without_rescaling(config):
    """What a checkpoint held before there was the setting."""
    return {key: value for key, value in identity(config).items() if key != "model.rescale_actions"}


def test_a_run_from_before_keeps_clipping(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with monkeypatch.context() as old:
        old.setattr("rollmill.history.identity", without_rescaling)
        run = rollmill.train(RUN, run=path, **{"model.rescale_actions": False})
    text = (path / "config.yaml").read_text()
    assert "  rescale_actions: false\n" in text
    (path / "config.yaml").write_text(text.replace("  rescale_actions: false\n", ""))
    assert load_run_config(path).config.model.rescale_actions is False
    assert run.policy()(np.zeros(2, np.float32))[1] == 100  # near 0, clipped
    resumed = rollmill.resume(path, **{"train.steps": 128})
    assert resumed.status == "done"
    assert load_config(path / "config.yaml").config.model.rescale_actions is False


def test_an_edited_setting_is_still_refused(tmp_path):
    path = tmp_path / "run"
    rollmill.train(RUN, run=path)
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("rescale_actions: true", "rescale_actions: false"))
    with pytest.raises(Refused, match=r"model.rescale_actions is false in config.yaml but true"):
        rollmill.resume(path, **{"train.steps": 128})


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_weights_of_a_run_with_other_actions_are_refused(tmp_path, is_checkpoint):
    run = rollmill.train(RUN, run=tmp_path / "old", **{"model.rescale_actions": False})
    source = run.path / "checkpoints" / "latest" if is_checkpoint else run.path
    with pytest.raises(Refused, match=r"was trained with model.rescale_actions=false; set it to the same"):
        rollmill.train(RUN, run=tmp_path / "new", start_from=source)
    same = rollmill.train(RUN, run=tmp_path / "new", start_from=source, **{"model.rescale_actions": False})
    assert same.status == "done"


def test_discrete_actions_have_nothing_to_rescale(tmp_path):
    values = {**RUN, "env": {"id": "CartPole-v1", "group_size": 4}, "model": {"rescale_actions": False}}
    with pytest.raises(Refused, match=r"model.rescale_actions=false is not read: the actions are discrete"):
        rollmill.train(values, run=tmp_path / "run")
