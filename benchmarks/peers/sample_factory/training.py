"""Sample Factory as it trains by itself, with a listener that times its updates.

The module is imported again in each of its processes, because they are spawned.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import process
from typing import Any

from benchmarks.driver import SETTLING, Throughput, argument_parser, emit
from sample_factory.algo.learning import learner_worker
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.algo.utils.torch_utils import init_torch_runtime
from sample_factory.train import make_runner

THREADS = "SAMPLE_FACTORY_LEARNER_THREADS"  # a variable, for the learner is another process

# It has no setting for this, always takes one thread, and may have as many as ours.
learner_worker.init_torch_runtime = partial(init_torch_runtime, max_num_threads=int(os.environ.get(THREADS, "1")))

Options = dict[str, Any]
ASYNCHRONOUS: Options = {
    "algo": "APPO",
    "device": "cpu",
    "async_rl": True,
    "serial_mode": False,
    "num_workers": 2,
    "worker_num_splits": 2,
    "set_workers_cpu_affinity": True,
    "experiment": "benchmark",
    "train_for_env_steps": 10**10,  # never reached
}


class Listener(AlgoObserver):
    """Marks the updates and stops when the measurement is long enough."""

    def __init__(self, clock: Throughput, steps_per_update: int) -> None:
        self.clock, self.steps_per_update = clock, steps_per_update

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        # Its own count of steps is one of frames, four times as many on Atari and Doom.
        if not runner.stopped and self.clock.updated(training_iteration_since_resume * self.steps_per_update):
            runner._stop_training()


def measure(parse: Callable[[list[str]], Any], options: Options, threads: int = 1) -> None:
    """Trains with `options`, those of the command line last, and prints the result."""
    parser = argument_parser()
    parser.add_argument("overrides", nargs="*", help="key=value, after the workload's own settings")
    arguments = parser.parse_intermixed_args()
    overrides = dict(text.split("=", 1) for text in arguments.overrides)
    os.environ[THREADS] = str(overrides.pop("learner_threads", threads))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Doom's engine writes where it is started
        process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]  # and spawned processes return to this one
        chosen = {**ASYNCHRONOUS, **options, "seed": arguments.seed, "train_dir": folder, **overrides}
        config, runner = make_runner(parse(_command_line(chosen)))
        clock = Throughput(arguments.seconds, SETTLING)
        runner.register_observer(Listener(clock, config.batch_size * config.num_batches_per_epoch))
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        os.chdir("/")
    if status != ExperimentStatus.SUCCESS:
        raise SystemExit(f"Sample Factory ended with status {status}")
    emit(clock.result())


def _command_line(options: Options) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item) for item in values)]
    return words
