"""What an update costs besides its own arithmetic: order, finite checks, events, metrics, flight log, publishing.

The stand-in for replay of tests/runtime/replay_parts.py trains offline with a rule that computes nothing and publishes
every tenth update. Printed is the CPU time of the main thread per update, without that of the sample and of the rule.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.calibration import calibrate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runtime"))
import replay_parts

replay_parts.register()
from rollmill.algorithms.recipe import Update  # noqa: E402
from rollmill.algorithms.registry import RECIPES  # noqa: E402
from rollmill.events import Updated  # noqa: E402
from rollmill.experiment import Experiment  # noqa: E402
from rollmill.settings import load_config  # noqa: E402

WARM_UP, UPDATES, ROUNDS = 500, 2500, 5
CONFIG = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
    "algorithm": {"name": "offline-stand-in"},
    "train": {"updates": UPDATES},
    "observe": {"console": "none", "baseline_episodes": 0, "final_episodes": 0, "curve": False},
}
own_seconds = 0.0  # of the sample and the rule


class Nothing(replay_parts.StandInUpdate):
    """A rule that computes nothing."""

    def __call__(self, batch, context):
        global own_seconds
        begun = time.thread_time()
        self._count += 1
        update = Update({"loss": 0.0, "grad_norm": 1.0}, priorities=np.ones(8), is_published=self._count % 10 == 0)
        own_seconds += time.thread_time() - begun
        return update


class TimedStore(replay_parts.OfflineStore):
    """The stand-in's store, with the time of its samples."""

    def sample(self, rng, version):
        global own_seconds
        begun = time.thread_time()
        sample = super().sample(rng, version)
        own_seconds += time.thread_time() - begun
        return sample


def microseconds(flight_log: bool) -> float:
    """CPU time per update of one run."""
    config = {**CONFIG, "observe": {**CONFIG["observe"], "flight_log": flight_log}}
    with tempfile.TemporaryDirectory() as folder:
        begun, count = 0.0, 0
        for event in Experiment(load_config(config), f"{folder}/run").run():
            count += isinstance(event, Updated)
            if isinstance(event, Updated) and count == WARM_UP:
                begun, own = time.thread_time(), own_seconds
            elif isinstance(event, Updated) and count == UPDATES:
                spent = time.thread_time() - begun - (own_seconds - own)
        return spent / (UPDATES - WARM_UP) * 1e6


def main() -> None:
    RECIPES["offline-stand-in"] = replace(RECIPES["offline-stand-in"], update=Nothing, store=TimedStore)
    print(f"calibration loop {calibrate():.0f} ms")
    for flight_log in (True, False):
        measured = [microseconds(flight_log) for _ in range(ROUNDS)]
        name = "with" if flight_log else "without"
        print(
            f"{name} flight log: median {statistics.median(measured):.0f} µs ({min(measured):.0f}–{max(measured):.0f})"
        )
    print(f"calibration loop {calibrate():.0f} ms")


if __name__ == "__main__":
    main()
