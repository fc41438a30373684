"""Load the policy of a run and let it play in plain gymnasium: python examples/play_policy.py RUN [episodes]."""

import sys

import gymnasium as gym

import rollmill


def main(run: str, episodes: int = 3) -> list[float]:
    policy = rollmill.load(run)
    env = gym.make("CartPole-v1")
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    print("returns:", returns)
    return returns


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:3]))
