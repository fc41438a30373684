"""Observers as a user would write them, for tests that name this file in a config."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import rollmill


class Diary(rollmill.Hooks):
    """Notes every call with its progress, and writes all of it to <run>/diary.json when the run is over."""

    def __init__(self, file="diary.json"):
        self.file, self.calls = file, []

    def note(self, hook, progress, **data):
        where = {"steps": progress.env_steps, "updates": progress.updates, "fraction": progress.fraction}
        self.calls.append({"hook": hook, **where, **data})

    def on_init(self, progress, run):
        self.run = run
        self.note("init", progress, pid=os.getpid(), target=progress.target_steps)

    def on_start(self, progress, title, plan):
        self.note("start", progress, title=title)

    def on_training_step(self, progress, version, metrics):
        self.note("training_step", progress, version=version, has_metrics="entropy" in metrics)

    def on_trajectory(self, progress, unroll):
        data = {"actor": unroll.actor, "sequence": unroll.sequence, "version": unroll.version, "update": unroll.update}
        reward = unroll.arrays["reward"]
        sums = {"rewards": float(reward.sum()), "obs": float(np.abs(unroll.arrays["obs"]).sum(dtype=np.float64))}
        self.note("trajectory", progress, **data, **sums, is_writeable=reward.flags.writeable)

    def on_episode(self, progress, episode):
        self.note("episode", progress, **episode._asdict())

    def on_checkpoint(self, progress, path):
        self.note("checkpoint", progress, exists=path.exists())

    def on_worker_failure(self, progress, failure):
        self.note("worker_failure", progress, place=failure.place, is_replaced=failure.is_replaced)

    def on_stop(self, progress, status, summary):
        self.note("stop", progress, status=status, episodes=summary["episodes"])
        (self.run / self.file).write_text(json.dumps(self.calls))


class Sleeper(rollmill.Hooks):
    def __init__(self, seconds=0.05):
        self.seconds = seconds

    def on_training_step(self, progress, version, metrics):
        time.sleep(self.seconds)

    def on_trajectory(self, progress, unroll):
        time.sleep(self.seconds)


class Hanger(rollmill.Hooks):
    def on_init(self, progress, run):
        time.sleep(60)


class Raiser(rollmill.Hooks):
    def on_training_step(self, progress, version, metrics):
        raise ValueError("no such luck")

    def on_trajectory(self, progress, unroll):
        raise ValueError("no such luck")


class Flooder(rollmill.Hooks):
    def on_training_step(self, progress, version, metrics):
        for number in range(2000):
            print("flood", number, version)

    def on_trajectory(self, progress, unroll):
        self.on_training_step(progress, unroll.version, {})


class Quitter(rollmill.Hooks):
    def on_training_step(self, progress, version, metrics):
        sys.exit(0)


class Suicide(rollmill.Hooks):
    def on_training_step(self, progress, version, metrics):
        if version == 2:
            os.kill(os.getpid(), 9)


class Fussy(rollmill.Hooks):
    def __init__(self, keep: int):
        if keep < 1:
            raise ValueError("keep must be positive")


class NoHooks:
    pass


class Typo(rollmill.Hooks):
    def on_epsiode(self, progress, episode):
        pass


class Deaf(rollmill.Hooks):
    def note(self, progress):
        pass


class Confused(rollmill.Hooks):
    overflow = "explode"
