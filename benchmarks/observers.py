"""What observers cost the training: python -m benchmarks.observers [STEPS] [serial|processes].

Observers that do nothing, sleep, raise or flood, under each overflow rule, in a thread and in a process of their own.
Share: time in the hand-over by wall time. Speed: steps per second by those of a run without observers, measured right
before it. The hash of the parameters must be the same in all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import rollmill


class Idle(rollmill.Hooks):
    def on_trajectory(self, progress, unroll):
        pass

    def on_training_step(self, progress, version, metrics):
        pass


class Sleeping(rollmill.Hooks):
    def on_trajectory(self, progress, unroll):
        time.sleep(0.05)

    def on_training_step(self, progress, version, metrics):
        time.sleep(0.05)


class Raising(rollmill.Hooks):
    def on_trajectory(self, progress, unroll):
        raise ValueError("as it was told to")


class Flooding(rollmill.Hooks):
    def on_init(self, progress, run):
        self.file = (run / "flood.txt").open("w")

    def on_trajectory(self, progress, unroll):
        for number in range(300):
            print("a line of many", number, unroll.actor, file=self.file, flush=True)


def train(folder: Path, steps: int, runtime: str, observer: dict[str, object] | None):
    config = {
        "seed": 7,
        "env": {"id": "CartPole-v1", "groups": 4, "group_size": 8},
        "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 512, "epochs": 1},
        "train": {"steps": steps},
        "runtime": {"kind": runtime, "workers": 2 if runtime == "processes" else 1},
        "observe": {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0,
                    "baseline_episodes": 0, "observers": [] if observer is None else [observer]},
    }  # fmt: skip
    return rollmill.train(config, run=folder).summary


def main(steps: int = 100_000, runtime: str = "serial") -> None:
    cases = [(kind, "drop", where) for kind in (Idle, Sleeping, Raising, Flooding) for where in ("thread", "process")]
    cases.append((Sleeping, "block", "thread"))
    print(
        f"{'observer':<10}{'overflow':<10}{'where':<9}{'share':>8}{'speed':>7}{'delivered':>11}{'lost':>7}{'errors':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, overflow, where) in enumerate(cases):
            plain = train(Path(folder) / f"{number}-plain", steps, runtime, None)
            observer = {"path": f"{Path(__file__).resolve()}:{kind.__name__}", "overflow": overflow, "where": where}
            observed = train(Path(folder) / str(number), steps, runtime, observer)
            counts = observed["observers"][kind.__name__]
            speed = observed["throughput"]["steps_per_second"] / plain["throughput"]["steps_per_second"]
            lost = counts["dropped"] + counts["cut_off"]
            print(f"{kind.__name__:<10}{overflow:<10}{where:<9}{counts['handover_share']:>8.2%}{speed:>7.2f}"
                  f"{counts['delivered']:>11}{lost:>7}{counts['errors']:>8}", flush=True)  # fmt: skip
            assert observed["parameters_sha256"] == plain["parameters_sha256"], "an observer changed the result"


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]), *sys.argv[2:])
