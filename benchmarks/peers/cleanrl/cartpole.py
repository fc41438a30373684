"""CleanRL's ppo.py: throughput on CartPole-v1, 8 × 128 steps, 4 epochs, minibatch 256."""

from __future__ import annotations

import torch
from benchmarks.driver import parse_arguments
from benchmarks.peers.cleanrl.script import measure


def main() -> None:
    torch.set_num_threads(1)
    measure("cleanrl.ppo", parse_arguments())


if __name__ == "__main__":
    main()
