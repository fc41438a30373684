"""Repeats one run from its flight log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rollmill.actors.actor import Actor
from rollmill.doctor.preflight import draw_blueprint
from rollmill.errors import Refused, Stalled
from rollmill.events import Updated
from rollmill.flight.records import NAME
from rollmill.launch.process import tune_allocator
from rollmill.launch.pulse import watchdog
from rollmill.learners.learner import TrainConfig
from rollmill.models.weights import parameters_sha256
from rollmill.numerics import require
from rollmill.persist.checkpoints import Checkpoint, Checkpoints
from rollmill.persist.run_folder import RunFolder
from rollmill.resuming import refuse_edited_config
from rollmill.retrace.comparison import Checker, Diverged, RetraceHooks, ScriptedLedger
from rollmill.retrace.script import read_script
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.settings import ExperimentConfig, load_run_config


@dataclass(frozen=True)
class Step:
    """Progress of a retrace."""

    update: int = 0
    env_steps: int = 0
    hashes: int = 0  # compared so far


class Retrace:
    """Repeats a run in this process; `Diverged` is raised at the first difference.

    retrace = Retrace(Path("runs/…"))
    for step in retrace.steps():
        ...
    retrace.sha256
    """

    def __init__(self, run: Path, until: int | None = None) -> None:
        self.script = read_script(run)
        if until is not None and not 1 <= until <= self.script.last:
            raise Refused(f"--until {until} is not between 1 and {self.script.last}, the updates in {run / NAME}")
        self.until = until or len(self.script.updates)  # the last update to be made; 0: the first ended the run
        self.hooks = RetraceHooks()
        self.is_watched = True  # an environment that hangs is interrupted, which a debugger must not be
        self._folder = RunFolder(run)
        loaded = load_run_config(run)
        config = loaded.config
        if found := Checkpoints(self._folder.checkpoints, config.checkpoint).newest_with(Checkpoint.state):
            refuse_edited_config(run, loaded, found.content, found.path)
        require(config.runtime.numerics)
        self.config = _serial(config)
        self.runtime: SerialRuntime  # these two from the first step on
        self.ledger: ScriptedLedger
        self.made = 0  # updates
        self.sha256 = ""  # of the parameters, at the end

    def steps(self) -> Iterator[Step]:
        """Run up to `until`, update by update."""
        tune_allocator()
        limit = self.config.runtime.env_seconds
        with watchdog(limit) if self.is_watched else nullcontext():
            blueprint = draw_blueprint(self.config, is_new=False)
            blueprint = replace(blueprint, versions=self.script.most_lag(self.until) + 2)
            self._fields = blueprint.fields
            self.runtime = SerialRuntime(draw_graph(blueprint), self.config.runtime)
            try:
                self.runtime.start()
                yield from self._updates()
                self.sha256 = parameters_sha256(self.runtime.learner.trainer.weights())
            finally:
                self.runtime.close()

    def _updates(self) -> Iterator[Step]:
        runtime, learner = self.runtime, self.runtime.learner
        if self._folder.initial.is_file():
            learner.trainer.load(RunFolder.read_weights(self._folder.initial))
        if not self.until:
            return
        checker = Checker(self.script, self._fields, self.hooks)
        sequencer = learner.sequencer
        sequencer.flight = checker
        sequencer.ledger = self.ledger = ScriptedLedger(
            self.script, self.until, sequencer.tickets, self._give_up, lambda: learner.trainer.updates, self.hooks
        )
        self._settle(0)
        self.hooks.begun()
        try:
            for event in runtime.run():
                if isinstance(event, Updated):
                    self.made = event.progress.updates
                    self._settle(event.progress.updates)
                    if event.progress.updates == self.until:
                        runtime.stop()
                    yield Step(event.progress.updates, event.progress.env_steps, len(checker.hashes))
        except Stalled as stalled:
            raise Diverged(self.made + 1, "unrolls", f"they can't be made again: {stalled}") from None
        if self.made < self.until:
            raise Diverged(self.made + 1, "train", "training is done before it, and in the log it continues")

    def _settle(self, update: int) -> None:
        """The settings of the process that continued from here."""
        if (facts := self.script.begun.get(update)) is not None:
            goal = TrainConfig(steps=facts["target_steps"] or None, updates=facts.get("target_updates") or None)
            self.runtime.learner.retarget(goal)
            self.runtime.give_threads("learner", facts["learner_threads"])
            if update:  # the run may have been complete, with no tickets given
                self.ledger.give(update)

    def _give_up(self, actor: int, rows: list[int]) -> None:
        component = self.runtime.component(f"actor.{actor}")
        assert isinstance(component, Actor)
        component.give_up(rows)


def _serial(config: ExperimentConfig) -> ExperimentConfig:
    """The same run in one process; decisions are made on the device that made them then."""
    runtime = config.runtime
    devices, threads = runtime.devices, runtime.threads
    if runtime.roles != "fused":
        devices = devices.model_copy(update={"actor": devices.inference})
        threads = threads.model_copy(update={"actor": threads.inference})
    changes = {"kind": "serial", "roles": "fused", "workers": 1, "devices": devices, "threads": threads}
    return config.model_copy(update={"runtime": runtime.model_copy(update=changes)})
