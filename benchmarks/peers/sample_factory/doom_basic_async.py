"""Sample Factory: asynchronous PPO on ViZDoom's basic scenario, its own settings, 2 × 16 environments."""

from __future__ import annotations

from benchmarks.peers.sample_factory.training import measure
from sf_examples.vizdoom.train_vizdoom import parse_vizdoom_cfg, register_vizdoom_components

OPTIONS = {"env": "doom_basic", "num_envs_per_worker": 16}


def main() -> None:
    register_vizdoom_components()
    measure(parse_vizdoom_cfg, OPTIONS)


if __name__ == "__main__":
    main()
