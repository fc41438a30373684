"""Stable-Baselines3: PPO on Hopper-v5 with RL-Zoo's settings for Hopper."""

from __future__ import annotations

from benchmarks.peers.sb3.mujoco_settings import train

if __name__ == "__main__":
    train(
        "Hopper-v5",
        batch_size=32,
        gamma=0.999,
        learning_rate=9.80828e-05,
        ent_coef=0.00229519,
        clip_range=0.2,
        n_epochs=5,
        gae_lambda=0.99,
        max_grad_norm=0.7,
        vf_coef=0.835671,
    )
