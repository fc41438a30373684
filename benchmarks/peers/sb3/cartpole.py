"""Stable-Baselines3: throughput of PPO on CartPole-v1, 8 × 128 steps, 4 epochs, minibatch 256."""

from __future__ import annotations

import torch
from benchmarks.driver import Throughput, emit, parse_arguments
from benchmarks.peers.sb3.clocks import ThroughputCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=arguments.seed, vec_env_cls=DummyVecEnv),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=arguments.seed,
        device="cpu",
    )
    clock = Throughput(arguments.seconds)
    model.learn(10**9, callback=ThroughputCallback(clock))
    emit(clock.result())


if __name__ == "__main__":
    main()
