"""Sample Factory: asynchronous PPO on Pong with its own Atari settings, but 2 × 4 environments and 2 splits."""

from __future__ import annotations

import ale_py  # noqa: F401  # registers the games, in each process
from benchmarks.peers.sample_factory.training import measure
from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

OPTIONS = {
    "env": "atari_pong",
    "num_envs_per_worker": 4,
    "rollout": 128,
    "batch_size": 256,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "lr_schedule": "constant",
}


def main() -> None:
    register_atari_components()
    measure(parse_atari_args, OPTIONS)


if __name__ == "__main__":
    main()
