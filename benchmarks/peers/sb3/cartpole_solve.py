"""Stable-Baselines3: seconds until CartPole-v1 is solved, with RL-Zoo's settings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.driver import emit, parse_arguments
from benchmarks.peers.sb3.clocks import SolveCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

TOTAL_STEPS = (100_000, 200_000, 400_000)  # RL-Zoo's own; the next one only if a seed isn't solved within it


def linear(start: float) -> Callable[[float], float]:
    """RL-Zoo's `lin_X`: from `start` to 0 over the whole training."""
    return lambda remaining: remaining * start


def train(seed: int, total_steps: int) -> tuple[float | None, int]:
    """Seconds until solved (None if never) and the steps taken."""
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed, vec_env_cls=DummyVecEnv),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=linear(1e-3),
        clip_range=linear(0.2),
        seed=seed,
        device="cpu",
    )
    callback = SolveCallback()
    model.learn(total_steps, callback=callback)
    return callback.clock.seconds, model.num_timesteps


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    for total_steps in TOTAL_STEPS:  # the seconds of a shorter training that failed are not held against the peer
        seconds, env_steps = train(arguments.seed, total_steps)
        if seconds is not None:
            break
    emit({"seconds_to_solve": seconds, "env_steps": env_steps, "total_steps": total_steps})


if __name__ == "__main__":
    main()
