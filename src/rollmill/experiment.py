"""An experiment from configuration to summary: the one place where everything comes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rollmill.algorithms.registry import RECIPES
from rollmill.config.load import Loaded
from rollmill.console.standard import default_observers
from rollmill.doctor.preflight import draw_blueprint
from rollmill.doctor.restore_trial import run_grade
from rollmill.errors import Refused
from rollmill.events import Event, Opened, Progress
from rollmill.history import History
from rollmill.launch.interruption import Interruption
from rollmill.launch.pulse import watchdog
from rollmill.learners.learner import TrainConfig
from rollmill.numerics import facts, require
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.hooks import Hooks
from rollmill.observe.observer import Observer
from rollmill.observe.phrases import amount, count
from rollmill.observe.user_observers import make_user_observers
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.play.trained_policy import LoadedPolicy, load
from rollmill.resuming import Reopened, fitting_weights, reopen
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import ThreadsConfig
from rollmill.runtime.graph import Runtime
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.session import Session
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
    "resume",
    "train",
    "train_run",
]


@dataclass(frozen=True)
class Run:
    """A run that has ended: where it lies and how it went."""

    path: Path
    status: str  # "done" | "interrupted"
    signal: int  # that interrupted it, 0 otherwise
    summary: Mapping[str, Any]

    def __repr__(self) -> str:
        """Without the summary, which is a page of numbers."""
        reached, steps = (self.summary.get("returns") or {}).get("mean_100"), self.summary.get("env_steps")
        return f"Run({str(self.path)!r}, {self.status!r}, {count(steps)} steps, return {amount(reached)})"

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
        observers: Sequence[Observer] | None = None,  # in place of the standard ones
        hooks: Sequence[Hooks] = (),  # further observers, added to those of the config
        start_from: str | Path | None = None,  # a run, checkpoint or file whose weights to begin with
    ) -> None:
        self.config = config.config if isinstance(config, Loaded) else config
        require(self.config.runtime.numerics)
        self._run_path = None if run is None else Path(run)
        self._overwrite = overwrite
        self._observers, self._hooks = observers, tuple(hooks)
        self._start_from = None if start_from is None else Path(start_from)
        self._reopened: Reopened | None = None
        self._interruption = Interruption()
        self._session: Session | None = None
        # called when the run is to end, before anything of it does; perhaps in a signal handler
        self.on_stop: Callable[[], None] = lambda: None
        self.folder: RunFolder

    @classmethod
    def resumed(
        cls, run: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), hooks: Sequence[Hooks] = ()
    ) -> Experiment:
        """The experiment of a run folder, to continue from its newest good checkpoint."""
        reopened = reopen(Path(run), overrides)
        experiment = cls(reopened.config, run, hooks=hooks)
        experiment._reopened = reopened
        return experiment

    @property
    def signal(self) -> int:
        """The signal that interrupted the run; 0 if none did."""
        return self._interruption.signal

    @property
    def summary(self) -> dict[str, Any]:
        """How the run went; empty until it has ended."""
        return {} if self._session is None else self._session.summary

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does."""
        self._interruption.request()

    def run(self) -> Iterator[Event]:
        """Train, yielding every event after it was handed to the observers; the run folder is complete at the end."""
        config, observe = self.config, self.config.observe
        users = make_user_observers(observe.observers, self._hooks)
        spare_slots = observe.spare_slots if any(user.trajectories_after is not None for user in users) else 0
        with watchdog(config.runtime.env_seconds):
            blueprint = draw_blueprint(config, spare_slots, is_new=self._reopened is None)
            history = History(config, facts(config.runtime.numerics), run_grade(config))
        weights = None if self._start_from is None else fitting_weights(self._start_from, blueprint)
        graph = draw_graph(blueprint)
        self.folder = self._open_folder()
        with self.folder.locked():
            if self._reopened is not None:
                self._reopened = self._reopened.claimed()
            spaces = blueprint.observation_space, blueprint.action_space
            self.folder.describe(config, *spaces, numerics=history.numerics)
            runtime: Runtime
            if config.runtime.kind == "serial":
                runtime = SerialRuntime(graph, config.runtime)
            else:
                runtime = ProcessRuntime(graph, config.runtime, self.folder.logs)
            self._interruption.on_request = partial(self._end_training, runtime)
            observers = default_observers(self.folder.path, observe) if self._observers is None else self._observers
            dispatcher = Dispatcher(observers, users=users, spare_slots=spare_slots)
            with dispatcher, self._interruption.by_signals():
                dispatcher.publish(Opened(self._first_progress(blueprint), str(self.folder.path)))
                self._session = Session(
                    history,
                    self.folder,
                    blueprint,
                    runtime,
                    dispatcher,
                    self._interruption,
                    self._reopened,
                    weights,
                )
                events = self._session.events()
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

    def _end_training(self, runtime: Runtime) -> None:
        self.on_stop()
        runtime.stop()

    def _first_progress(self, blueprint: Blueprint) -> Progress:
        """Progress of the run before anything is built."""
        content = None if self._reopened is None else self._reopened.found.content
        steps, updates = (0, 0) if content is None else (content.env_steps, content.update)
        frames = steps * blueprint.frame_skip
        return Progress(steps, frames, updates=updates, **self.config.train.targets)

    def _open_folder(self) -> RunFolder:
        if self._reopened is not None:
            return RunFolder(self._reopened.path)
        name = f"{self.config.algorithm.name}-{self.config.env.id}-seed{self.config.seed}"
        return RunFolder.create(self._run_path, name, self._overwrite)


def train(
    config: str | Path | Mapping[str, Any],
    *,
    run: str | Path | None = None,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    observers: Sequence[Hooks] = (),
    **overrides: Any,
) -> Run:
    """Train to the end; `config` is a YAML file or a dict, overrides have dotted keys: `**{"train.steps": 10_000}`.

    `observers` are added to the standard ones and those of the config.
    """
    loaded = load_config(config, overrides)
    return _finish(Experiment(loaded, run, overwrite=overwrite, start_from=start_from, hooks=observers))


def resume(run: str | Path, observers: Sequence[Hooks] = (), **overrides: Any) -> Run:
    """Continue a run that was interrupted, exactly from its newest good checkpoint."""
    return _finish(Experiment.resumed(run, overrides, observers))


def train_run(
    config: Path,
    overrides: Sequence[str],
    run: Path | None,
    overwrite: bool,
    dev: bool,
    is_resumed: bool = False,
    start_from: Path | None = None,
) -> Run:
    """What `rollmill train` does."""
    if is_resumed:
        if run is not None or overwrite or dev or start_from is not None:
            raise Refused("--resume continues in place; leave out --run, --overwrite, --dev and --from")
        return _finish(Experiment.resumed(config, overrides))
    if (config / MARK).is_file():
        raise Refused(f"{config} is a run folder; add --resume to continue it, or give a YAML file")
    loaded = load_config(config, overrides)
    settings = _tiny(loaded.config) if dev else loaded.config
    return _finish(Experiment(settings, run, overwrite=overwrite, start_from=start_from))


def _finish(experiment: Experiment) -> Run:
    for _ in experiment.run():
        pass
    return Run(experiment.folder.path, experiment.summary["status"], experiment.signal, experiment.summary)


def _tiny(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment through all its parts in seconds: serial, one thread, an update or two."""
    columns = config.algorithm.flow(config.env.groups).unrolls * config.env.group_size
    algorithm, steps = config.algorithm.tiny(columns)
    return config.model_copy(
        update={
            "algorithm": algorithm,
            "train": TrainConfig(updates=2) if config.train.steps is None else TrainConfig(steps=steps),
            "runtime": config.runtime.model_copy(update={"kind": "serial", "threads": ThreadsConfig()}),
            "observe": config.observe.model_copy(
                update={"baseline_seconds": 0.2, "final_episodes": 1, "final_seconds": 0.2}
            ),
        }
    )


def check_config(loaded: Loaded[ExperimentConfig]) -> None:
    """Everything that training would check before its first step, without training."""
    make_user_observers(loaded.config.observe.observers)
    draw_graph(draw_blueprint(loaded.config))


def graph_text(loaded: Loaded[ExperimentConfig]) -> str:
    """The component graph for people."""
    return draw_graph(draw_blueprint(loaded.config)).text()


def known_algorithms() -> dict[str, str]:
    """Name and summary of every algorithm."""
    return {name: recipe.summary for name, recipe in RECIPES.items()}
