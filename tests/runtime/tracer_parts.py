"""A recipe whose every number can be checked: the policy acts with its version and counts steps in its state."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from rollmill.algorithms.appo import APPOConfig
from rollmill.algorithms.ppo import PPOConfig, fixed_unrolls
from rollmill.algorithms.recipe import Recipe, Update
from rollmill.algorithms.vpg import VPGConfig, whole_episodes
from rollmill.models.network import Model
from rollmill.stores.rollout import ArrivalStore, EpisodeStore, RolloutStore
from rollmill.types import ArraySpec, Decision, TopologySpec

SEEN: list = []  # batches as the update rule saw them, in the main process


class TracerNetwork(Model):
    """One weight that tells which version it belongs to; a state that counts the steps of an episode."""

    state_spec: ClassVar = {"count": ArraySpec((1,), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.version = torch.nn.Parameter(torch.zeros(()))

    def initial_state(self, batch):
        return {"count": torch.zeros(batch, 1)}


class TracerPolicy:
    records: ClassVar = dict.fromkeys(("log_prob", "value"), ArraySpec((), "float32"))
    last_records: ClassVar = {"last_word": ArraySpec((4,), "float32")}

    def __init__(self, network, context):
        self.network, self._size, self._version = network, context.size, -1
        self._place = context.actor, context.actors

    def begin(self, version):
        assert int(self.network.version.item()) == version, "the weights are not those of the ticket's version"
        self._version = version

    def noise(self, rng, steps):
        return rng.random((steps, self._size), np.float32)

    def initial_state(self):
        return {"count": np.zeros((self._size, 1), np.float32)}

    def act(self, obs, state, reset, noise):
        count = np.where(reset[:, None], 0, state["count"]) + 1  # steps of the episode, this one included
        action = np.full((self._size, 1), self._version, np.float32)
        # value and log_prob carry the step that was seen and the noise that was drawn for this row
        records = {"log_prob": noise, "value": obs[:, 3].copy()}
        return Decision(action, records, {"count": count.astype(np.float32)})

    def finish(self, obs, state, reset):
        # which actor of how many, the step that follows the unroll, and the state after it
        place = np.broadcast_to(np.float32(self._place), (self._size, 2))
        return {"last_word": np.concatenate([place, obs[:, 3:4], state["count"]], 1)}


class TracerUpdate:
    def __init__(self, network, optimizer, config):
        self._network = network

    def __call__(self, batch, context):
        SEEN.append(batch)
        with torch.no_grad():
            self._network.version += 1
        return Update({"seen": float(len(SEEN))})

    def capture(self):
        return {}, {}

    def restore(self, arrays, state):
        pass


def tracer_network(observation_space, action_space, config, *, seed, **options):
    return TracerNetwork()


UNROLLS = Recipe(
    "tracer",
    "",
    PPOConfig,
    tracer_network,
    TracerPolicy,
    fixed_unrolls,
    RolloutStore,
    TracerUpdate,
    TopologySpec(),
)
EPISODES = Recipe(
    "tracer",
    "",
    VPGConfig,
    tracer_network,
    TracerPolicy,
    whole_episodes,
    EpisodeStore,
    TracerUpdate,
    TopologySpec(),
)
ARRIVALS = Recipe(
    "tracer",
    "",
    APPOConfig,
    tracer_network,
    TracerPolicy,
    fixed_unrolls,
    ArrivalStore,
    TracerUpdate,
    TopologySpec("async"),
)
