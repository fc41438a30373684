"""Rollmill's side of every workload: `python -m benchmarks.ours WORKLOAD [--seconds S] [--seed N] [key=value …]`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.driver import MUJOCO_STEPS, SETTLING, FixedLength, SolveClock, Throughput, argument_parser, emit
from rollmill.config.load import Loaded
from rollmill.events import EpisodesEnded, RunStarted, Updated
from rollmill.experiment import Experiment, ExperimentConfig, load_config

QUIET = ["observe.console=none"]  # everything else that is kept of a run stays on, as it ships
SAME_FOR_ALL = [
    *QUIET,
    "train.steps=1000000000",  # never reached
    "algorithm.unroll=128",
    "algorithm.minibatch=256",
    "algorithm.learning_rate=2.5e-4",
    "algorithm.anneal_learning_rate=false",
    "algorithm.gamma=0.99",
    "algorithm.gae_lambda=0.95",
    "algorithm.anneal_clip=false",
    "algorithm.entropy_coefficient=0.01",
    "algorithm.value_coefficient=0.5",
    "algorithm.max_grad_norm=0.5",
]
CARTPOLE = [
    *SAME_FOR_ALL,
    "algorithm.epochs=4",
    "env.groups=1",
    "env.group_size=8",
    "env.reward_scale=1.0",
    "model.hidden=[64, 64]",
    "model.activation=tanh",
    "model.shared=false",
    "algorithm.clip=0.2",
]
PONG = [
    *SAME_FOR_ALL,
    "env.groups=2",
    "env.group_size=4",
    "model.torso=nature_cnn",
    "model.conv=[]",
    "model.features=512",
    "model.activation=tanh",  # the default, which the Nature CNN does not read: it has rectifiers
    "model.normalise_images=false",
    "algorithm.epochs=4",
    "algorithm.clip=0.1",
]
NORMALISED = ["model.normalise_images=true", "algorithm.normalise_returns=true"]  # as Sample Factory does
DOOM = [*QUIET, *NORMALISED, "train.steps=1000000000", "algorithm.epochs=1", "algorithm.minibatch=1024"]

# The file and the settings that a workload has in place of the file's.
SETTINGS: dict[str, tuple[str, list[str]]] = {
    "cartpole": ("configs/ppo/cartpole.yaml", CARTPOLE),
    "cartpole-solve": ("configs/ppo/cartpole.yaml", QUIET),
    "pong": ("configs/ppo/pong.yaml", [*PONG, "runtime.threads.learner=2"]),
    "cartpole-portable": ("configs/ppo/cartpole.yaml", CARTPOLE),
    "pong-portable": ("configs/ppo/pong.yaml", [*PONG, "runtime.threads.learner=2"]),
    "memory-cue-portable": ("configs/ppo/memory_cue.yaml", [*QUIET, "train.steps=1000000000"]),
    "cartpole-async": ("configs/appo/cartpole.yaml", [*CARTPOLE, "algorithm.unrolls=1", "runtime.workers=1"]),
    "pong-async": ("configs/appo/pong.yaml", [*PONG, *NORMALISED, "algorithm.unrolls=2", "algorithm.in_flight=2"]),
    "doom-basic-async": ("configs/appo/doom_basic.yaml", DOOM),
    "hopper": ("configs/mujoco/hopper.yaml", [*QUIET, f"train.steps={MUJOCO_STEPS}"]),
    "halfcheetah": ("configs/mujoco/halfcheetah.yaml", [*QUIET, f"train.steps={MUJOCO_STEPS}"]),
    "doom-hgs-async": ("configs/appo/health_gathering_supreme.yaml", DOOM),
}


def settings_of(workload: str, seed: int, overrides: Sequence[str] = ()) -> Loaded[ExperimentConfig]:
    """The configuration of a workload; overrides of the caller win."""
    file, settings = SETTINGS[workload]
    chosen = {text.partition("=")[0]: text for text in [*settings, f"seed={seed}", *overrides]}
    return load_config(file, list(chosen.values()))


def measure_throughput(experiment: Experiment, seconds: float, settling: float) -> dict[str, float | int | None]:
    """Steps per second over the updates after the first ones."""
    clock = Throughput(seconds, settling)
    is_over = False
    for event in experiment.run():
        if isinstance(event, Updated) and not is_over:
            is_over = clock.updated(event.progress.env_steps)
            if is_over:
                experiment.stop()
    return clock.result()


def measure_solving(experiment: Experiment) -> dict[str, float | int | None]:
    """Seconds from the first ticket until the task is solved."""
    clock = SolveClock()
    env_steps = 0
    for event in experiment.run():
        if isinstance(event, RunStarted):
            clock = SolveClock()  # processes are up and the random policy's score is known: training begins
        elif isinstance(event, EpisodesEnded) and clock.seconds is None:
            env_steps = event.progress.env_steps
            if clock.ended(event.returns):
                experiment.stop()
    return {"seconds_to_solve": clock.seconds, "env_steps": env_steps}


def measure_learning(experiment: Experiment) -> dict[str, float | int | None]:
    """Seconds and final return of a training of fixed length."""
    clock = FixedLength(experiment.config.train.steps)
    result: dict[str, float | int | None] = {}
    for event in experiment.run():
        if isinstance(event, RunStarted):
            clock = FixedLength(experiment.config.train.steps)  # training begins, as in `measure_solving`
        elif isinstance(event, EpisodesEnded):
            clock.ended(event.progress.env_steps, event.returns)
        elif isinstance(event, Updated) and event.progress.env_steps >= clock.steps:
            result = {**clock.result(), "env_steps": event.progress.env_steps}
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser()
    parser.add_argument("workload", choices=SETTINGS)
    parser.add_argument("overrides", nargs="*", help="key=value, after the workload's own settings")
    return parser.parse_intermixed_args()


def main() -> None:
    arguments = parse_arguments()
    config = settings_of(arguments.workload, arguments.seed, arguments.overrides)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(config, run=Path(folder) / "run")
        if arguments.workload == "cartpole-solve":
            result = measure_solving(experiment)
        elif arguments.workload in ("hopper", "halfcheetah"):
            result = measure_learning(experiment)
        else:
            settling = SETTLING if arguments.workload.endswith("-async") else 0.0
            result = measure_throughput(experiment, arguments.seconds, settling)
    emit(result)


if __name__ == "__main__":
    main()
