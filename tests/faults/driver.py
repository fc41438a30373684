"""A training run that kills one of its own processes at a given update: what `test_chaos.py` starts.

python driver.py RUN CONFIG.json [UPDATE:VICTIM:DELAY …]   a run that exists is resumed; the delay is in seconds

With a `+` before the update, a kill is held back until whoever was killed before has been replaced and has worked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from rollmill import Experiment, load_config
from rollmill.events import Updated, WorkerReplaced


def victim_pid(victim: str) -> int | None:
    """The process meant by `main`, `forkserver`, `guardian` or `worker.N`; None if it isn't there now."""
    main = psutil.Process()
    if victim == "main":
        return main.pid
    helpers = {name: p for p in main.children() for name in ("forkserver", "guardian") if name in " ".join(p.cmdline())}
    if victim in helpers:
        return helpers[victim].pid
    if victim.startswith("worker") and "forkserver" in helpers:
        workers = sorted(
            child.pid for child in helpers["forkserver"].children() if child.status() != psutil.STATUS_ZOMBIE
        )
        if workers:
            return workers[int(victim.partition(".")[2]) % len(workers)]
    return None


def kill(victim: str, delay: float) -> None:
    time.sleep(delay)
    pid = None
    for _ in range(100):  # somebody else may just be starting it anew
        with suppress(psutil.Error):
            pid = victim_pid(victim)
        if pid is not None:
            break
        time.sleep(0.02)
    assert pid is not None, f"no {victim} to kill"
    print(f"killing {victim}", flush=True)
    os.kill(pid, signal.SIGKILL)


class Orders:
    """Whom to kill when, in order."""

    def __init__(self, orders: list[str], workers: int) -> None:
        self._orders = [order.split(":") for order in orders]
        self._workers = workers  # that are replaced one by one when the forkserver dies
        self._owed = 0  # replacements that have not happened yet
        self._updates_to_wait = 0

    def updated(self, update: int) -> None:
        """Kill, if it is time."""
        if self._owed or self._updates_to_wait:
            self._updates_to_wait -= not self._owed
            time.sleep(0.05)  # asynchronous training goes on meanwhile: it must not reach its end
        if not self._orders:
            return
        moment, victim, delay = self._orders[0]
        is_held_back = moment.startswith("+") and (self._owed > 0 or self._updates_to_wait > 0)
        if update < int(moment) or is_held_back:
            return
        del self._orders[0]
        if moment.startswith("+"):
            self._owed = {"worker": 1, "forkserver": self._workers}.get(victim.partition(".")[0], 0)
        threading.Thread(target=kill, args=(victim, float(delay)), daemon=True).start()
        if victim == "main":  # so that the update it falls in isn't the last one by chance
            time.sleep(0.001)

    def replaced(self) -> None:
        """Somebody stands in for the dead one; a few updates later it will have shown that it works."""
        self._owed = max(self._owed - 1, 0)
        self._updates_to_wait = 2


def main() -> None:
    run, config, *orders = sys.argv[1:]
    if Path(run, "run.json").exists():
        experiment = Experiment.resumed(run)
    else:
        experiment = Experiment(load_config(json.loads(Path(config).read_text())), run)
    runtime = experiment.config.runtime
    plan = Orders(orders, runtime.workers if runtime.roles == "fused" else 1)
    for event in experiment.run():
        if isinstance(event, WorkerReplaced):
            print(f"replaced {event.place} {event.seconds:.2f} {event.replay_seconds:.2f} {event.reason}", flush=True)
            plan.replaced()
        if isinstance(event, Updated):
            plan.updated(event.progress.updates)
    print("sha256", experiment.summary["parameters_sha256"], flush=True)


if __name__ == "__main__":
    main()
