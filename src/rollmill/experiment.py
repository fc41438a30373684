"""An experiment from configuration to summary: the one place where everything comes together."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from rollmill.actors.evaluate import Scored, play_greedily, play_randomly
from rollmill.algorithms.registry import RECIPES
from rollmill.assembly import draw_blueprint, draw_graph
from rollmill.config_file import Loaded
from rollmill.errors import Detected, RollmillError, WorkerFailed
from rollmill.models.weights import parameters_sha256, weights_of
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.events import ComponentFailed, Event, Progress, RunStarted, Said, Stopped
from rollmill.observe.observer import Observer
from rollmill.observe.standard import default_observers
from rollmill.policy import LoadedPolicy, load
from rollmill.run_folder import RunFolder
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import ThreadsConfig
from rollmill.runtime.process import tune_allocator
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.settings import ExperimentConfig, load_config

__all__ = [
    "Experiment",
    "ExperimentConfig",
    "LoadedPolicy",
    "Run",
    "check_config",
    "graph_text",
    "known_algorithms",
    "load",
    "load_config",
    "train",
    "train_run",
]

ONE_SIGNAL_SECONDS = 0.3  # two signals within this time are one
RESUME_GRADE = "approximate: only the weights are saved"


@dataclass(frozen=True)
class Run:
    """A run that has ended: where it lies and how it went."""

    path: Path
    status: str  # "done" | "interrupted"
    signal: int  # that interrupted it, 0 otherwise
    summary: Mapping[str, Any]

    def policy(self) -> LoadedPolicy:
        """The trained policy."""
        return load(self.path)


class Experiment:
    """One training run.

    experiment = Experiment(load_config("configs/ppo/cartpole.yaml", ["seed=3"]))
    for event in experiment.run():
        ...
    """

    def __init__(
        self,
        config: Loaded[ExperimentConfig] | ExperimentConfig,
        run: str | Path | None = None,
        *,
        overwrite: bool = False,
        observers: Sequence[Observer] | None = None,  # None: those of the config's observe section
    ) -> None:
        self.config = config.config if isinstance(config, Loaded) else config
        self._run_path = None if run is None else Path(run)
        self._overwrite = overwrite
        self._observers = observers
        self._runtime: SerialRuntime | ProcessRuntime | None = None
        self._is_stopping = False
        self.signal = 0
        self._signalled = 0.0
        self.folder: RunFolder
        self.summary: dict[str, Any] = {}

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does."""
        self._is_stopping = True
        if self._runtime is not None:
            self._runtime.stop()

    def run(self) -> Iterator[Event]:
        """Train, yielding every event after it was handed to the observers; the run folder is complete at the end."""
        keeps_blocks = tune_allocator()
        blueprint = draw_blueprint(self.config)
        graph = draw_graph(blueprint)
        name = f"{self.config.algorithm.name}-{self.config.env.id}-seed{self.config.seed}"
        self.folder = RunFolder.create(self._run_path, name, self._overwrite)
        self.folder.describe(self.config)
        observers = self._observers
        if observers is None:
            observers = default_observers(self.folder.path, self.config.observe)
        if self.config.runtime.kind == "serial":
            runtime: SerialRuntime | ProcessRuntime = SerialRuntime(graph, self.config.runtime)
        else:
            runtime = ProcessRuntime(graph, self.config.runtime, self.folder.logs)
        self._runtime = runtime
        with Dispatcher(observers) as dispatcher, self._signals_stop():
            events = self._events(runtime, blueprint, keeps_blocks)
            try:
                for event in events:
                    dispatcher.publish(event)
                    yield event
            except GeneratorExit:  # the caller has seen enough: end as stop() does
                self.stop()
                for event in events:
                    dispatcher.publish(event)
                raise
            finally:
                runtime.close()

    def _events(
        self, runtime: SerialRuntime | ProcessRuntime, blueprint: Blueprint, keeps_blocks: bool
    ) -> Iterator[Event]:
        failure: Exception | None = None
        config, observe = self.config, self.config.observe
        baseline = greedy = Scored((), 0.0)
        runtime.start()
        try:
            baseline = play_randomly(
                blueprint.action_space, config.env, config.seed, observe.baseline_episodes, observe.baseline_seconds
            )
            title = f"{config.algorithm.name} on {config.env.id}"
            start = Progress(target_steps=config.train.steps)
            allocator = "allocator: " + ("keeps large blocks" if keeps_blocks else "as it is (no mallopt here)")
            yield RunStarted(start, title, (*runtime.plan(), allocator), baseline.mean, len(baseline.returns))
            if not self._is_stopping:
                yield from runtime.run()
        except Exception as error:
            failure = error  # told below, when everything that can be kept is kept
        progress = runtime.learner.progress()
        if failure is not None and not isinstance(failure, WorkerFailed):  # which has told its own
            yield ComponentFailed(progress, "main", str(failure), "".join(traceback.format_exception(failure)))
        self.folder.save_weights(weights_of(runtime.learner.network))
        runtime.close()
        status, reason = self._verdict(failure)
        if status == "done":
            make = partial(blueprint.recipe.policy, runtime.learner.network)
            try:
                greedy = play_greedily(make, config.env, config.seed, observe.final_episodes, observe.final_seconds)
            except RollmillError as error:  # the training is done all the same
                yield Said(progress, "run", f"the finished policy could not be played: {error}", "warning")
        self.summary = self._summarise(runtime, progress, baseline, greedy, status, reason)
        yield Stopped(progress, status, reason, self.summary)
        if failure is not None:
            raise failure

    def _verdict(self, failure: Exception | None) -> tuple[str, str]:
        if failure is not None:
            return ("detected" if isinstance(failure, Detected) else "failed"), str(failure)
        if self._is_stopping:
            name = signal.Signals(self.signal).name if self.signal else "stop()"
            return "interrupted", f"by {name}; the weights so far are saved"
        return "done", "all steps made"

    def _summarise(
        self,
        runtime: SerialRuntime | ProcessRuntime,
        progress: Progress,
        baseline: Scored,
        greedy: Scored,
        status: str,
        reason: str,
    ) -> dict[str, Any]:
        learner, scores = runtime.learner, runtime.learner.scores
        seconds = max(progress.seconds, 1e-9)
        return {
            "status": status,
            "reason": reason,
            "algorithm": self.config.algorithm.name,
            "env": self.config.env.id,
            "seed": self.config.seed,
            "runtime": self.config.runtime.kind,
            "workers": self.config.runtime.workers,
            "env_steps": progress.env_steps,
            "frames": progress.frames,
            "target_steps": progress.target_steps,
            "updates": progress.updates,
            "episodes": progress.episodes,
            "parameters_sha256": parameters_sha256(weights_of(learner.network)),
            "returns": {
                "ema": scores.return_ema,
                "mean_100": scores.mean_100,
                "best_mean_100": scores.best_mean_100,
                "greedy": greedy.mean,
                "greedy_episodes": len(greedy.returns),
            },
            "random_baseline": {
                "return": baseline.mean,
                "episodes": len(baseline.returns),
                "seconds": round(baseline.seconds, 3),
            },
            "throughput": {
                "steps_per_second": progress.env_steps / seconds,
                "frames_per_second": progress.frames / seconds,
                "seconds": progress.seconds,
                "time": learner.time_shares,
            },
            "resume_grade": RESUME_GRADE,
            "run": str(self.folder.path),
        }

    @contextmanager
    def _signals_stop(self) -> Iterator[None]:
        """The first Ctrl-C, SIGTERM or SIGHUP ends the run in order, the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._is_stopping and monotonic() - self._signalled < ONE_SIGNAL_SECONDS:
                return  # the same wish, sent twice: by a terminal and a scheduler, say
            if self._is_stopping:
                raise SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt
            self.signal, self._signalled = number, monotonic()
            self.stop()

        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        # what was started with nohup is not to hear the terminal go
        heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def train(
    config: str | Path | Mapping[str, Any], *, run: str | Path | None = None, overwrite: bool = False, **overrides: Any
) -> Run:
    """Train to the end; `config` is a YAML file or a dict, overrides have dotted keys: `**{"train.steps": 10_000}`."""
    return _finish(Experiment(load_config(config, overrides), run, overwrite=overwrite))


def train_run(config: Path, overrides: Sequence[str], run: Path | None, overwrite: bool, dev: bool) -> Run:
    """What `rollmill train` does."""
    loaded = load_config(config, overrides)
    return _finish(Experiment(_tiny(loaded.config) if dev else loaded.config, run, overwrite=overwrite))


def _finish(experiment: Experiment) -> Run:
    for _ in experiment.run():
        pass
    return Run(experiment.folder.path, experiment.summary["status"], experiment.signal, experiment.summary)


def _tiny(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment through all its parts in seconds: serial, one thread, an update or two."""
    algorithm, steps = config.algorithm.tiny(config.env.groups * config.env.group_size)
    return config.model_copy(
        update={
            "algorithm": algorithm,
            "train": config.train.model_copy(update={"steps": steps}),
            "runtime": config.runtime.model_copy(update={"kind": "serial", "threads": ThreadsConfig()}),
            "observe": config.observe.model_copy(
                update={"baseline_seconds": 0.2, "final_episodes": 1, "final_seconds": 0.2}
            ),
        }
    )


def check_config(loaded: Loaded[ExperimentConfig]) -> None:
    """Everything that training would check before its first step, without training."""
    draw_graph(draw_blueprint(loaded.config))


def graph_text(loaded: Loaded[ExperimentConfig]) -> str:
    """The component graph for people."""
    return draw_graph(draw_blueprint(loaded.config)).text()


def known_algorithms() -> dict[str, str]:
    """Name and summary of every algorithm."""
    return {name: recipe.summary for name, recipe in RECIPES.items()}
