"""Stable-Baselines3: PPO on HalfCheetah-v5 with RL-Zoo's settings for HalfCheetah."""

from __future__ import annotations

from benchmarks.peers.sb3.mujoco_settings import train

if __name__ == "__main__":
    train(
        "HalfCheetah-v5",
        batch_size=64,
        gamma=0.98,
        learning_rate=2.0633e-05,
        ent_coef=0.000401762,
        clip_range=0.1,
        n_epochs=20,
        gae_lambda=0.92,
        max_grad_norm=0.8,
        vf_coef=0.58096,
    )
