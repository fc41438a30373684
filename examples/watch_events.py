"""Train from Python and react to events: python examples/watch_events.py [TARGET] [KEY=VALUE]... stops when solved."""

import sys
from collections import deque
from pathlib import Path

import rollmill
from rollmill.errors import Refused
from rollmill.events import EpisodesEnded

CONFIG = Path(__file__).parents[1] / "configs/ppo/cartpole.yaml"
USAGE = "usage: python examples/watch_events.py [TARGET] [KEY=VALUE]..., such as 475 train.steps=50000"


def main(target: float = 475.0, *overrides: str) -> None:
    config = rollmill.load_config(CONFIG, ["observe.console=none", *overrides])
    experiment = rollmill.Experiment(config)
    recent: deque[float] = deque(maxlen=100)
    for event in experiment.run():
        if isinstance(event, EpisodesEnded):
            recent.extend(event.returns)
            if len(recent) == 100 and sum(recent) / 100 >= target:
                experiment.stop()  # ends in order: weights and summary are written
    mean = f"{sum(recent) / len(recent):.1f}" if recent else "unknown"
    print(f"{experiment.summary['env_steps']} steps, mean return {mean}, run {experiment.folder.path}")


if __name__ == "__main__":
    overrides = [word for word in sys.argv[1:] if "=" in word]
    try:
        targets = [float(word) for word in sys.argv[1:] if "=" not in word]
    except ValueError:
        sys.exit(USAGE)
    if len(targets) > 1:
        sys.exit(USAGE)
    try:
        main(*(targets or [475.0]), *overrides)
    except Refused as refusal:  # one line that says why
        sys.exit(str(refusal))
