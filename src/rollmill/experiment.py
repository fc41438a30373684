"""An experiment from configuration to summary: the one place where everything comes together."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from rollmill.actors.episodes import UNRESTORED
from rollmill.actors.evaluate import Scored, play_greedily, play_randomly
from rollmill.algorithms.registry import RECIPES
from rollmill.assembly import draw_blueprint, draw_graph
from rollmill.config_file import Loaded
from rollmill.envs.restore_trial import resume_grade
from rollmill.errors import Detected, NoExperience, Refused, RollmillError, WorkerFailed, exit_code_of
from rollmill.learners.checkpoint import Checkpoints, Content
from rollmill.learners.journal import borders_from
from rollmill.learners.learner import Learner
from rollmill.models.weights import parameters_sha256, weights_of
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.events import (
    Checkpointing,
    ComponentFailed,
    Event,
    Progress,
    RunStarted,
    Said,
    Stopped,
    Updated,
)
from rollmill.observe.observer import Observer
from rollmill.observe.resume import trim
from rollmill.observe.standard import default_observers
from rollmill.policy import LoadedPolicy, load
from rollmill.pulse import watchdog
from rollmill.resuming import Reopened, reopen, weights_at
from rollmill.run_folder import MARK, RunFolder
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import ThreadsConfig
from rollmill.runtime.process import tune_allocator
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.saving import Saver, write_dump
from rollmill.settings import ExperimentConfig, load_config
from rollmill.types import Array, Border

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

ONE_SIGNAL_SECONDS = 0.3  # two signals within this time are one
FLUSH_SECONDS = 5.0  # that a checkpoint waits for the files beside it


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
        start_from: str | Path | None = None,  # a run, checkpoint or file whose weights to begin with
    ) -> None:
        self.config = config.config if isinstance(config, Loaded) else config
        self._run_path = None if run is None else Path(run)
        self._overwrite = overwrite
        self._observers = observers
        self._start_from = None if start_from is None else Path(start_from)
        self._reopened: Reopened | None = None
        self._runtime: SerialRuntime | ProcessRuntime | None = None
        self._is_stopping = False
        self.signal = 0
        self._signalled = 0.0
        self._first_trouble = ""
        self._grade = ""
        self.folder: RunFolder
        self.summary: dict[str, Any] = {}

    @classmethod
    def resumed(cls, run: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Experiment:
        """The experiment of a run folder, to go on where its newest good checkpoint stands."""
        reopened = reopen(Path(run), overrides)
        experiment = cls(reopened.config, run)
        experiment._reopened = reopened
        return experiment

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does."""
        self._is_stopping = True
        if self._runtime is not None:
            self._runtime.stop()

    def run(self) -> Iterator[Event]:
        """Train, yielding every event after it was handed to the observers; the run folder is complete at the end."""
        keeps_blocks = tune_allocator()
        weights = None if self._start_from is None else weights_at(self._start_from)
        with watchdog(self.config.runtime.env_seconds):
            blueprint = draw_blueprint(self.config)
            self._grade = self._resume_grade()
        graph = draw_graph(blueprint)
        self.folder = self._open_folder()
        with self.folder.locked():
            if self._reopened is not None:
                trim(self.folder.path, self._reopened.found.content.env_steps)
                self.folder.weights.unlink(missing_ok=True)
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
                events = self._events(runtime, blueprint, dispatcher, weights, keeps_blocks)
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

    def _open_folder(self) -> RunFolder:
        if self._reopened is not None:
            return RunFolder(self._reopened.path)
        name = f"{self.config.algorithm.name}-{self.config.env.id}-seed{self.config.seed}"
        return RunFolder.create(self._run_path, name, self._overwrite)

    def _resume_grade(self) -> str:
        """How exactly this run could go on after an interruption."""
        device = self.config.runtime.devices.learner
        if device != "cpu":
            return f"approximate: runtime.devices.learner={device} doesn't repeat its sums bit for bit"
        return resume_grade(self.config.env)

    def _events(
        self,
        runtime: SerialRuntime | ProcessRuntime,
        blueprint: Blueprint,
        dispatcher: Dispatcher,
        weights: Mapping[str, Array] | None,
        keeps_blocks: bool,
    ) -> Iterator[Event]:
        failure: Exception | None = None
        config, observe, reopened = self.config, self.config.observe, self._reopened
        baseline = greedy = Scored((), 0.0)
        borders: dict[int, Border] = {}
        resumed: list[dict[str, int]] = []
        if reopened is not None:
            borders = borders_from(reopened.found.content.arrays["actors"], blueprint.problem)
        runtime.start(borders)
        learner = runtime.learner
        checkpoints = reopened.checkpoints if reopened else Checkpoints(self.folder.checkpoints, config.checkpoint)
        saver = Saver(checkpoints, {})
        try:
            with self._watchdog():
                if reopened is not None:
                    content = reopened.found.content
                    learner.restore(content)
                    baseline, resumed = _remembered(content)
                else:
                    if weights is not None:
                        learner.load_weights(weights)
                    baseline = play_randomly(
                        blueprint.action_space,
                        config.env,
                        config.seed,
                        observe.baseline_episodes,
                        observe.baseline_seconds,
                    )
                saver = Saver(checkpoints, {"baseline": baseline._asdict(), "resumed": resumed})
                yield self._start_event(runtime, baseline, keeps_blocks)
                if reopened is not None:
                    for complaint in reopened.found.complaints:
                        yield Said(learner.progress(), "checkpoint", f"{complaint}; an older one is used", "warning")
                    where = f"goes on from {reopened.found.path}, update {learner.updates}"
                    yield Said(learner.progress(), "run", where)
                if saver.is_due(learner.progress(), {}):
                    yield from self._save(saver, learner, dispatcher)
                if not self._is_stopping:
                    for event in runtime.run():
                        self._hear(event)
                        yield event
                        if isinstance(event, Updated) and saver.is_due(event.progress, event.metrics):
                            yield from self._save(saver, learner, dispatcher)
        except Exception as error:
            failure = self._told(error)  # raised below, when everything that can be kept is kept
        progress = learner.progress()
        if failure is not None and not isinstance(failure, WorkerFailed):  # which has told its own
            yield ComponentFailed(progress, "main", str(failure), "".join(traceback.format_exception(failure)))
        if isinstance(failure, Detected):
            dump = write_dump(self.folder.path, failure.evidence, str(failure), progress)
            if dump is not None:
                yield Said(progress, "run", f"batch and weights are kept in {dump}", "warning")
        elif saver.is_behind(learner.updates):
            yield from self._save(saver, learner, dispatcher)
        unsaved = self._save_weights(learner)
        runtime.close()
        status, reason = self._verdict(failure)
        if status == "done":
            make = partial(blueprint.recipe.policy, learner.network)
            try:
                with self._watchdog():
                    greedy = play_greedily(make, config.env, config.seed, observe.final_episodes, observe.final_seconds)
            except RollmillError as error:  # the training is done all the same
                yield Said(progress, "run", f"the finished policy could not be played: {error}", "warning")
        self.summary = self._summarise(runtime, progress, baseline, greedy, status, reason)
        self.summary |= {
            "resumed": resumed,
            "checkpoints": saver.account(progress.seconds),
            "failures": self._failures(runtime),
            "losses": dispatcher.losses(),
        }
        yield Stopped(progress, status, reason, self.summary)
        if failure is not None:
            raise failure
        if unsaved is not None:
            raise RollmillError(f"{self.folder.path}: the final weights could not be written: {unsaved}; make room")

    def _watchdog(self) -> AbstractContextManager[None]:
        """Ends environment code that hangs in this process."""
        return watchdog(self.config.runtime.env_seconds, self.folder.logs / "main.stack")

    def _start_event(self, runtime: SerialRuntime | ProcessRuntime, baseline: Scored, keeps_blocks: bool) -> RunStarted:
        title = f"{self.config.algorithm.name} on {self.config.env.id}"
        allocator = "allocator: " + ("keeps large blocks" if keeps_blocks else "as it is (no mallopt here)")
        plan = (*runtime.plan(), allocator, f"resume: {self._grade}")
        return RunStarted(runtime.learner.progress(), title, plan, baseline.mean, len(baseline.returns))

    def _save(self, saver: Saver, learner: Learner, dispatcher: Dispatcher) -> Iterator[Event]:
        """A checkpoint, once the files beside it have everything up to here: a resumed run finds no gap in them."""
        yield Checkpointing(learner.progress())
        dispatcher.flush(FLUSH_SECONDS)
        yield saver.save(learner)

    def _save_weights(self, learner: Learner) -> str | None:
        """The weights for use elsewhere; what kept them from being written."""
        try:
            self.folder.save_weights(weights_of(learner.network))
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _hear(self, event: Event) -> None:
        """Remember what the end of the run will have to tell."""
        if isinstance(event, Said) and event.level == "warning":
            if UNRESTORED in event.text:
                self._grade = f"approximate: env.id={self.config.env.id}: {event.text}"
            elif "\n" in event.text and not self._first_trouble:
                self._first_trouble = event.text

    def _told(self, error: Exception) -> Exception:
        """The error as the user should see it: with the first thing that went wrong in an environment on top."""
        if isinstance(error, NoExperience) and self._first_trouble:
            first, _, trace = self._first_trouble.partition("\n")
            return WorkerFailed(f"{error}: {first}", trace)
        return error

    def _failures(self, runtime: SerialRuntime | ProcessRuntime) -> dict[str, Any]:
        workers = [
            {
                "place": event.place,
                "reason": event.reason,
                "update": event.progress.updates,
                "seconds": round(event.seconds, 3),
                "replay_seconds": round(event.replay_seconds, 3),
            }
            for event in runtime.replacements
        ]
        return {"workers": workers, **runtime.learner.environment_failures}

    def _verdict(self, failure: Exception | None) -> tuple[str, str]:
        if failure is not None:
            return ("detected" if isinstance(failure, Detected) else "failed"), str(failure)
        if self._is_stopping:
            name = signal.Signals(self.signal).name if self.signal else "stop()"
            return "interrupted", f"by {name}; go on with: rollmill train {self.folder.path} --resume"
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
            "resume_grade": self._grade,
            "run": str(self.folder.path),
        }

    @contextmanager
    def _signals_stop(self) -> Iterator[None]:
        """The first Ctrl-C, SIGTERM, SIGUSR1 (Slurm's warning) or SIGHUP ends the run in order, the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._is_stopping and monotonic() - self._signalled < ONE_SIGNAL_SECONDS:
                return  # the same wish, sent twice: by a terminal and a scheduler, say
            if self._is_stopping:
                raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(exit_code_of(number))
            self.signal, self._signalled = number, monotonic()
            self.stop()

        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]
        # what was started with nohup is not to hear the terminal go
        heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def train(
    config: str | Path | Mapping[str, Any],
    *,
    run: str | Path | None = None,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    **overrides: Any,
) -> Run:
    """Train to the end; `config` is a YAML file or a dict, overrides have dotted keys: `**{"train.steps": 10_000}`."""
    return _finish(Experiment(load_config(config, overrides), run, overwrite=overwrite, start_from=start_from))


def resume(run: str | Path, **overrides: Any) -> Run:
    """Go on with a run that was interrupted, exactly where its newest good checkpoint stands."""
    return _finish(Experiment.resumed(run, overrides))


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
            raise Refused("--resume goes on in place; leave out --run, --overwrite, --dev and --from")
        return _finish(Experiment.resumed(config, overrides))
    if (config / MARK).is_file():
        raise Refused(f"{config} is a run folder; add --resume to go on with it, or give a YAML file")
    loaded = load_config(config, overrides)
    settings = _tiny(loaded.config) if dev else loaded.config
    return _finish(Experiment(settings, run, overwrite=overwrite, start_from=start_from))


def _remembered(content: Content) -> tuple[Scored, list[dict[str, int]]]:
    """The random baseline and the earlier resumes of a run, from its checkpoint."""
    kept = content.state["run"]
    baseline = Scored(tuple(kept["baseline"]["returns"]), kept["baseline"]["seconds"])
    return baseline, [*kept["resumed"], {"update": content.update, "env_steps": content.env_steps}]


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
