"""Stable-Baselines3: throughput of PPO on Pong, 8 × 128 steps, 4 epochs, minibatch 256, Nature CNN."""

from __future__ import annotations

import ale_py
import gymnasium
import torch
from benchmarks.driver import Throughput, emit, parse_arguments
from benchmarks.peers.sb3.clocks import ThroughputCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(2)
    gymnasium.register_envs(ale_py)
    # ALE/Pong-v5 skips four frames by itself and so does the Atari wrapper: 16 if one of them is not switched off.
    settings = {"frameskip": 1, "repeat_action_probability": 0.0}
    envs = make_atari_env("ALE/Pong-v5", n_envs=8, seed=arguments.seed, vec_env_cls=DummyVecEnv, env_kwargs=settings)
    model = PPO(
        "CnnPolicy",
        VecFrameStack(envs, n_stack=4),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.1,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        seed=arguments.seed,
        device="cpu",
    )
    clock = Throughput(arguments.seconds)
    model.learn(10**9, callback=ThroughputCallback(clock))
    emit(clock.result())


if __name__ == "__main__":
    main()
