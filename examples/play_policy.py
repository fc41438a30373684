"""Load the policy of a run and let it play in plain gymnasium: python examples/play_policy.py RUN [episodes]."""

import sys

import gymnasium as gym

import rollmill
from rollmill.errors import Refused

USAGE = "usage: python examples/play_policy.py RUN [EPISODES]"


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
    words = sys.argv[1:]
    if not 1 <= len(words) <= 2 or not all(word.isdecimal() for word in words[1:]):
        sys.exit(USAGE)
    try:
        main(words[0], *map(int, words[1:]))
    except Refused as refusal:  # one line that says why
        sys.exit(str(refusal))
