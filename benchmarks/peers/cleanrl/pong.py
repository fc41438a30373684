"""CleanRL's ppo_atari_envpool.py: throughput on Pong, 8 × 128 steps, 4 epochs, minibatch 256, Nature CNN."""

from __future__ import annotations

from typing import Any

import envpool
import gym
import torch
from benchmarks.driver import parse_arguments
from benchmarks.peers.cleanrl.script import measure

make_pool = envpool.make


class OldApiPool(gym.Env):
    """The gym 0.23 interface that the script was written for, over today's EnvPool, which only speaks gymnasium's."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.observation_space = gym.spaces.Box(0, 255, pool.observation_space.shape, "uint8")
        self.action_space = gym.spaces.Discrete(int(pool.action_space.n))

    def reset(self, **_: Any) -> Any:
        return self.pool.reset()[0]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any]:
        obs, reward, terminated, truncated, info = self.pool.step(action)
        return obs, reward, terminated | truncated, info

    def close(self) -> None:
        self.pool.close()


def make(task: str, env_type: str, **options: Any) -> OldApiPool:
    """What the script calls as `envpool.make`."""
    return OldApiPool(make_pool(task, env_type="gymnasium", **options))


def main() -> None:
    torch.set_num_threads(2)
    envpool.make = make
    measure("cleanrl.ppo_atari_envpool", parse_arguments())


if __name__ == "__main__":
    main()
