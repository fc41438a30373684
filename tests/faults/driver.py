"""A training run that kills one of its own processes at a given update: what `test_chaos.py` starts.

python driver.py RUN CONFIG.json [UPDATE:VICTIM:DELAY …]   a run that exists is resumed; the delay is in seconds
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
from rollmill.observe.events import Updated, WorkerReplaced


def victim_pid(victim: str) -> int | None:
    """The process meant by `main`, `nursery`, `guardian` or `worker.N`; None if it isn't there now."""
    main = psutil.Process()
    if victim == "main":
        return main.pid
    helpers = {name: p for p in main.children() for name in ("nursery", "guardian") if name in " ".join(p.cmdline())}
    if victim in helpers:
        return helpers[victim].pid
    if victim.startswith("worker") and "nursery" in helpers:
        workers = sorted(child.pid for child in helpers["nursery"].children() if child.status() != psutil.STATUS_ZOMBIE)
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


def main() -> None:
    run, config, *orders = sys.argv[1:]
    plan = {int(update): (victim, float(delay)) for update, victim, delay in (order.split(":") for order in orders)}
    if Path(run, "run.json").exists():
        experiment = Experiment.resumed(run)
    else:
        experiment = Experiment(load_config(json.loads(Path(config).read_text())), run)
    for event in experiment.run():
        if isinstance(event, WorkerReplaced):
            print(f"replaced {event.place} {event.seconds:.2f} {event.replay_seconds:.2f} {event.reason}", flush=True)
        if isinstance(event, Updated) and event.progress.updates in plan:
            victim, delay = plan.pop(event.progress.updates)
            threading.Thread(target=kill, args=(victim, delay), daemon=True).start()
            if victim == "main":  # so that the update it falls in isn't the last one by chance
                time.sleep(0.001)
    print("sha256", experiment.summary["parameters_sha256"], flush=True)


if __name__ == "__main__":
    main()
