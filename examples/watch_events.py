"""Train from Python and react to events: stop as soon as CartPole is solved."""

import sys
from collections import deque

import rollmill
from rollmill.observe.events import EpisodesEnded


def main(target: float = 475.0, *overrides: str) -> None:
    config = rollmill.load_config("configs/ppo/cartpole.yaml", ["observe.console=none", *overrides])
    experiment = rollmill.Experiment(config)
    recent: deque[float] = deque(maxlen=100)
    for event in experiment.run():
        if isinstance(event, EpisodesEnded):
            recent.extend(event.returns)
            if len(recent) == 100 and sum(recent) / 100 >= target:
                experiment.stop()  # ends in order: weights and summary are written
    summary = experiment.summary
    print(f"{summary['env_steps']} steps, mean return {sum(recent) / len(recent):.1f}, run {experiment.folder.path}")


if __name__ == "__main__":
    main(*(float(word) for word in sys.argv[1:2]), *sys.argv[2:])
