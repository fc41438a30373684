"""Runs one of CleanRL's own scripts, unchanged, in this process and times the `SPS:` line that ends each update."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
import traceback

from benchmarks.driver import Throughput, emit

STEPS_PER_UPDATE = 8 * 128
OPTIONS = {
    "--num-envs": 8,
    "--num-steps": 128,
    "--num-minibatches": 4,
    "--update-epochs": 4,
    "--total-timesteps": 10**9,  # never reached
    "--anneal-lr": False,
    "--clip-vloss": False,  # neither does the other side
    "--cuda": False,
}


class Finished(Exception):
    """Raised out of the script's print once the measurement is long enough; the scripts have no other way to stop."""


class UpdateListener:
    """Stands in for stdout: marks the updates and drops the text."""

    def __init__(self, clock: Throughput) -> None:
        self.clock = clock
        self.updates = 0

    def write(self, text: str) -> None:
        if text.startswith("SPS"):
            self.updates += 1
            if self.clock.updated(self.updates * STEPS_PER_UPDATE):
                raise Finished

    def flush(self) -> None:
        """Nothing is kept back."""


def close_writer(finished: Finished) -> None:
    """Ends the thread that writes the script's TensorBoard log before its folder goes."""
    for frame, _ in traceback.walk_tb(finished.__traceback__):
        if "writer" in frame.f_globals:
            frame.f_globals["writer"].close()
            return


def measure(module: str, arguments: argparse.Namespace) -> None:
    """Runs `python -m <module> --option value …` in a temporary folder and prints the result."""
    clock = Throughput(arguments.seconds)
    stdout, folder = sys.stdout, os.getcwd()
    options = {**OPTIONS, "--seed": arguments.seed}
    sys.argv = [module, *(str(text) for option in options.items() for text in option)]
    sys.stdout = UpdateListener(clock)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)  # the scripts write to runs/
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Finished as finished:
            close_writer(finished)
        finally:
            os.chdir(folder)
            sys.stdout = stdout
    emit(clock.result())
