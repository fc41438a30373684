"""A run that is trained in a moment."""

from __future__ import annotations

from pathlib import Path

import rollmill

CARTPOLE = {
    "env": {"id": "CartPole-v1", "groups": 1, "group_size": 4},
    "model": {"hidden": [16]},
    "algorithm": {"name": "ppo", "unroll": 32, "minibatch": 64, "epochs": 1},
    "train": {"steps": 512},
    "checkpoint": {"updates": 2},
    "observe": {"console": "none", "baseline_episodes": 0, "final_episodes": 0, "curve": False, "tensorboard": False},
}


def train(folder: Path, **changes) -> Path:
    return rollmill.train(CARTPOLE | changes, run=folder).path
