"""Everything that a process needs to build its components: settings and spaces, small and picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill import spaces
from rollmill.actors.actor import Actor
from rollmill.actors.episodes import Episodes
from rollmill.actors.roles import Collector, Environment, Inference
from rollmill.actors.snapshots import snapshot_row
from rollmill.algorithms.policy import Policy, PolicyContext
from rollmill.algorithms.recipe import AlgorithmConfig, Recipe
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.fields import Fields
from rollmill.learners.learner import Learner, TrainConfig
from rollmill.learners.optimizer import build_optimizers
from rollmill.learners.sequencer import Sequencer
from rollmill.learners.stopwatch import Stopwatch
from rollmill.learners.trainer import Trainer
from rollmill.models.config import ModelConfig
from rollmill.models.network import Model
from rollmill.runtime.config import RuntimeConfig
from rollmill.seeding import integer_seed
from rollmill.transport.ports import Ports
from rollmill.types import AssemblerSpec, Flow, FrameStack, Problem


@dataclass(frozen=True)
class Blueprint:
    """The parts of one experiment and how to build each of them."""

    seed: int
    env: EnvConfig
    model: ModelConfig
    algorithm: AlgorithmConfig
    train: TrainConfig
    runtime: RuntimeConfig
    recipe: Recipe
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    frame_skip: int
    snapshot_size: int  # bytes of one environment's snapshot; 0: there is none
    stacks: Mapping[str, FrameStack]  # by path: the leaves of the observation that stack frames
    spare_slots: int = 0  # per actor, for those who look at unrolls while training continues
    versions: int | None = None  # of the weights that are kept at least; None: as many as the flow needs

    @property
    def assembler(self) -> AssemblerSpec:
        """How steps become unrolls."""
        return self.recipe.assembler(self.algorithm)

    @property
    def actors(self) -> int:
        """One per env group; none where training is offline: then the environment is for evaluation."""
        return 0 if self.recipe.topology.kind == "offline" else self.env.groups

    @property
    def flow(self) -> Flow:
        """How unrolls flow from the actors to the learner."""
        return self.algorithm.flow(self.actors)

    @cached_property
    def problem(self) -> Problem:
        """The specs that every slot layout follows from."""
        return Problem(
            spaces.observation_spec(self.observation_space),
            spaces.action_spec(self.action_space),
            self.network("cpu").state_spec,
            self.recipe.policy.records,
            self.recipe.policy.last_records,
            snapshot_row(self.snapshot_size),
            self.stacks,
        )

    @cached_property
    def fields(self) -> Fields:
        """The fields of an unroll."""
        return Fields(self.problem)

    @property
    def action_scale(self) -> spaces.ActionScale | None:
        """From the actions that the policy chooses and unrolls keep to the environment's; None: they are the same."""
        return spaces.action_scale(self.action_space) if self.model.rescale_actions else None

    @property
    def action_plan(self) -> tuple[str, ...]:
        """A line on what continuous actions mean."""
        if not isinstance(self.action_space, gym.spaces.Box):
            return ()
        if self.action_scale is not None:
            return ("actions: -1 and 1 of the policy are the bounds, to which actions are clipped",)
        return ("actions: clipped to their bounds",) if np.isfinite(self.action_space.low).any() else ()

    def network(self, device: str) -> Model:
        """The network with its initial weights: the same in every process, for they come from the seed."""
        seed = integer_seed(self.seed, "weights")
        model: Model = self.recipe.network(
            self.observation_space, self.action_space, self.model, seed=seed, **self.algorithm.network_options
        )
        return model.to(device)

    def policy(self, actor: int, device: str) -> Policy:
        """A policy copy for the group of one actor."""
        context = PolicyContext(self.algorithm, self.env.group_size, actor, self.actors)
        return self.recipe.policy(self.network(device), context)

    def episodes(self, number: int) -> Episodes:
        """Group number `number`, ready to play."""
        return Episodes(make_group(self.env), self.env, self.assembler, self.seed, number, self.action_scale)

    def build_actor(self, number: int, name: str, ports: Ports) -> Actor:
        """The fused actor of one group."""
        policy = self.policy(number, self.runtime.devices.actor)
        return Actor(name, self.episodes(number), policy, self.assembler.steps, self.seed, ports)

    def build_environment(self, number: int, name: str, ports: Ports) -> Environment:
        """The environment role of one group."""
        return Environment(name, self.episodes(number), ports)

    def build_inference(self, name: str, ports: Ports) -> Inference:
        """The inference role for all groups."""
        policies = [self.policy(i, self.runtime.devices.inference) for i in range(self.actors)]
        return Inference(name, policies, self.assembler.steps, self.seed, ports)

    def build_collector(self, name: str, ports: Ports) -> Collector:
        """The collector role of one group."""
        return Collector(name, tuple(self.problem.records), tuple(self.problem.last_records), ports)

    @property
    def overlaps(self) -> bool:
        """Whether actors continue while the learner learns."""
        return self.recipe.topology.kind == "async" and self.runtime.kind != "serial"

    def build_learner(self, name: str, ports: Ports) -> Learner:
        """The learner, which is the trainer role."""
        device = self.runtime.devices.learner
        network = self.network(device)
        optimizers = build_optimizers(network, self.algorithm.optimizer_of)
        update = self.recipe.update(network, optimizers, self.algorithm)
        store = self.recipe.store(self.fields, self.flow, self.algorithm, device)
        is_serial = self.runtime.kind == "serial"
        decides_apart = not is_serial and self.runtime.roles != "fused"
        stopwatch = Stopwatch(1 if is_serial else self.runtime.workers, self.overlaps, decides_apart=decides_apart)
        tickets = [ports.senders[f"tickets.{i}"] for i in range(self.actors)]
        weights = ports.writers["weights"]
        sequencer = Sequencer(
            ports.receivers["unrolls"], tickets, weights.depth, store, self.flow, self.problem, stopwatch
        )
        trainer = Trainer(network, optimizers, update, weights, self.seed)
        return Learner(name, sequencer, store, trainer, self.train, self.frame_skip, stopwatch)
