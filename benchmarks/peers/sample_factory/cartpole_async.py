"""Sample Factory: asynchronous PPO on CartPole, 8 environments × 128 steps, 4 epochs, minibatch 256, MLP 64-64 tanh."""

from __future__ import annotations

from benchmarks.peers.sample_factory.training import measure
from sf_examples.train_gym_env import parse_custom_args, register_custom_components

OPTIONS = {
    "env": "CartPole-v1",
    "num_envs_per_worker": 4,
    "rollout": 128,
    "batch_size": 256,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "use_rnn": False,
    "encoder_mlp_layers": [64, 64],
    "nonlinearity": "tanh",
    "actor_critic_share_weights": False,
    "normalize_input": False,
    "normalize_returns": False,
    "learning_rate": 2.5e-4,
    "ppo_clip_ratio": 0.2,
    "exploration_loss_coeff": 0.01,
    "max_grad_norm": 0.5,
}


def main() -> None:
    register_custom_components()
    measure(parse_custom_args, OPTIONS)


if __name__ == "__main__":
    main()
