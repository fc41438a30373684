"""Stable-Baselines3: a training of fixed length on MuJoCo, observations and rewards normalised as RL-Zoo does."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.driver import MUJOCO_STEPS, emit, parse_arguments
from benchmarks.peers.sb3.clocks import LearningCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


def train(env_id: str, **settings: Any) -> None:
    """Train with one environment and RL-Zoo's network for the tuned MuJoCo tasks; print the result."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    envs = make_vec_env(env_id, n_envs=1, seed=arguments.seed, vec_env_cls=DummyVecEnv)
    model = PPO(
        "MlpPolicy",
        VecNormalize(envs, gamma=settings["gamma"]),
        n_steps=512,
        policy_kwargs={
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
        seed=arguments.seed,
        device="cpu",
        **settings,
    )
    callback = LearningCallback()
    model.learn(MUJOCO_STEPS, callback=callback)
    emit({**callback.clock.result(), "env_steps": model.num_timesteps})
