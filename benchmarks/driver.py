"""What every driver script shares, ours and the peers' alike: arguments, clocks and the one line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterable

WARM_UP = 2  # updates before the clock starts, so that imports, allocation and caches are not measured
SETTLING = 5.0  # seconds between the first update and the clock where actors and learner run side by side
EPISODES = 100  # the window of a solved task
MUJOCO_STEPS = 200_000
TAIL = 0.1  # the part of a training of fixed length whose episodes count as its result
SOLVED_RETURN = 475.0  # mean over the window, CartPole-v1's own threshold


def argument_parser() -> argparse.ArgumentParser:
    """What every driver understands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a throughput measurement")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def parse_arguments() -> argparse.Namespace:
    """The arguments of a driver that has no others."""
    return argument_parser().parse_args()


def emit(result: dict[str, float | int | None]) -> None:
    """Prints the driver's only result, always with the same three keys first."""
    keys = {"steps_per_second": None, "seconds_to_solve": None, "env_steps": None}
    print(json.dumps({**keys, **result}), flush=True)


class Throughput:
    """Steps per second over whole updates, the last of them the first that ends after `seconds`.

    The clock starts with the end of update `WARM_UP`, or of the first one that ends `settling` seconds after the very
    first: with actors that run ahead, the first updates find their batches ready.
    """

    def __init__(self, seconds: float, settling: float = 0.0) -> None:
        self.seconds, self.settling = seconds, settling
        self.first: float | None = None  # when the first update ended
        self.updates = 0
        self.start: tuple[float, int] | None = None  # (time, env steps)
        self.end: tuple[float, int] | None = None

    def updated(self, env_steps: int) -> bool:
        """Notes the end of an update; True once the measurement is long enough."""
        now = time.perf_counter()
        self.updates += 1
        self.first = now if self.first is None else self.first
        if self.start is not None:
            self.end = now, env_steps
            return now - self.start[0] >= self.seconds
        if self.updates >= WARM_UP and now - self.first >= self.settling:
            self.start = now, env_steps
        return False

    def result(self) -> dict[str, float | int | None]:
        if self.start is None or self.end is None:
            raise SystemExit(f"only {self.updates} updates: nothing to measure after those for warming up")
        (start, first), (end, last) = self.start, self.end
        return {"steps_per_second": (last - first) / (end - start), "env_steps": last}


class FixedLength:
    """Seconds that a training of `steps` takes, and the mean return of the episodes that end in its last tenth."""

    def __init__(self, steps: int) -> None:
        self.start, self.steps = time.perf_counter(), steps
        self.returns: list[float] = []

    def ended(self, env_steps: int, returns: Iterable[float]) -> None:
        """Notes episodes that ended when `env_steps` had been made."""
        if env_steps > (1 - TAIL) * self.steps:
            self.returns.extend(map(float, returns))

    def result(self) -> dict[str, float | int | None]:
        seconds = time.perf_counter() - self.start
        mean = sum(self.returns) / len(self.returns) if self.returns else None
        return {"seconds": seconds, "return_at_end": mean, "episodes_at_end": len(self.returns)}


class SolveClock:
    """Seconds from the start of training until the last `EPISODES` training episodes average `SOLVED_RETURN`."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self.seconds: float | None = None

    def ended(self, returns: Iterable[float]) -> bool:
        """Notes finished episodes; True once the task is solved."""
        for value in returns:
            self.returns.append(value)
            full = len(self.returns) == EPISODES
            if self.seconds is None and full and sum(self.returns) / EPISODES >= SOLVED_RETURN:
                self.seconds = time.perf_counter() - self.start
        return self.seconds is not None
