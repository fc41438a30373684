"""Stand-ins for replay and for offline learning: small, and shaped like the real thing.

The first inserts without updates while it warms up, makes several updates per insert, keeps a target network, samples
by priority, gives priorities back and publishes every third update. Its value head is a critic with an optimiser of its
own, which actors don't get. Its first inserts are kept in sealed chunks. The second has no actors: its data is there
first.

Executed, this file is `rollmill` with these two algorithms: `python replay_parts.py train CONFIG …`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from rollmill.algorithms.policy import StochasticPolicy
from rollmill.algorithms.recipe import AlgorithmConfig, OptimizerSettings, Recipe, Update
from rollmill.models.network import Network, build_network
from rollmill.models.weights import weights_of
from rollmill.stores.store import Sample, StoreState
from rollmill.types import AssemblerSpec, Flow, TopologySpec

CAPACITY, BATCH = 64, 8  # transitions
SEALED = 3  # inserts


class StandInConfig(AlgorithmConfig):
    name: Literal["stand-in"] = "stand-in"
    unroll: int = 4
    warm_up: int = 4  # inserts
    updates_per_insert: int = 2
    publish_every: int = 3
    target_every: int = 4
    is_ordered: bool = True

    def flow(self, groups):
        return Flow(groups, 1 if self.is_ordered else 2, is_ordered=self.is_ordered)

    def optimizer_of(self, group):
        return OptimizerSettings("adam", {"actor": 1e-2, "critic": 3e-2}[group], 1e-8, 1.0)


class StandInNetwork(Network):
    """The value head is a critic: it has an optimiser of its own, and actors don't need it."""

    def parameter_groups(self):
        critic = list(self.value.parameters())
        return {"actor": [p for p in self.parameters() if all(p is not q for q in critic)], "critic": critic}

    def published(self):
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("value.")}


def build_stand_in(*spaces, **options):
    network = build_network(*spaces, **options)
    network.__class__ = StandInNetwork  # the same parts, in two groups
    return network


class StandInStore:
    """A ring of transitions with priorities; it commits what it inserts."""

    def __init__(self, fields, flow, config, device):
        self._config, self._round = config, flow.unrolls if flow.is_ordered else 1
        self._obs = np.zeros((CAPACITY, 4), np.float32)
        self._reward, self._priority = np.zeros(CAPACITY, np.float32), np.zeros(CAPACITY)
        self._sealed = {}  # the mean reward of each of the first inserts
        self.filled = self.inserts = self.updates = 0

    def _due(self):
        rounds = self.inserts // self._round
        return self._config.updates_per_insert * self._round * max(rounds - self._config.warm_up // self._round, 0)

    def may_insert(self):
        return not self.may_sample()

    def may_sample(self):
        return self.updates < self._due()

    def owes_updates(self):
        return self.may_sample()

    @staticmethod
    def waiting():
        return ()

    def insert(self, unroll):
        obs = unroll.arrays["obs"][:-1].reshape(-1, 4)
        # with the log-probability, so that every bit depends on the weights that made the unroll
        reward = (unroll.arrays["reward"] + unroll.arrays["log_prob"]).reshape(-1)
        rows = (self.filled + np.arange(len(obs))) % CAPACITY
        self._obs[rows], self._reward[rows] = obs, reward
        self._priority[rows] = self._priority.max() or 1.0
        if self.inserts < SEALED:
            self._sealed[f"{self.inserts:04}"] = {"mean": reward.mean()}
        self.filled += len(obs)
        self.inserts += 1
        return [unroll]

    def sample(self, rng, version):
        keys = rng().choice(CAPACITY, BATCH, p=self._priority / self._priority.sum())
        batch = {
            "obs": torch.from_numpy(self._obs[keys]),
            "reward": torch.from_numpy(self._reward[keys] + self._offset()),
            "keys": keys,
        }
        return Sample(batch, [], [])

    def _offset(self):
        return np.float32(sum(chunk["mean"] for chunk in self._sealed.values()))

    def used(self, sample, priorities):
        self._priority[sample.batch["keys"]] = priorities
        self.updates += 1
        return ()

    def capture(self):
        arrays = {"obs": self._obs, "reward": self._reward, "priority": self._priority}
        values = {"filled": self.filled, "inserts": self.inserts, "updates": self.updates}
        return StoreState(arrays, values, dict(self._sealed))

    def restore(self, state):
        arrays, values, sealed = state
        self._obs[:], self._reward[:], self._priority[:] = arrays["obs"], arrays["reward"], arrays["priority"]
        self.filled, self.inserts, self.updates = values["filled"], values["inserts"], values["updates"]
        self._sealed = {name: dict(sealed[name]) for name in sorted(sealed)}


class OfflineConfig(StandInConfig):
    name: Literal["offline-stand-in"] = "offline-stand-in"

    def flow(self, groups):
        assert groups == 0
        return Flow(1, 1)


class OfflineStore(StandInStore):
    """The same ring, full of transitions from a fixed seed; there is always a next update."""

    def __init__(self, fields, flow, config, device):
        super().__init__(fields, flow, config, device)
        data = np.random.default_rng(3)
        self._obs[:], self._reward[:] = data.normal(size=self._obs.shape), data.normal(size=CAPACITY)
        self._priority[:] = 1.0

    def may_sample(self):
        return True

    def insert(self, unroll):
        raise AssertionError("no actor makes unrolls")


class StandInUpdate:
    """The value learns reward plus the target network's value, which is a copy from some updates ago."""

    def __init__(self, network, optimizers, config):
        self._network, self._optimizers, self._config = network, optimizers, config
        self._target = {name: array.copy() for name, array in weights_of(network).items()}
        self._count = 0

    def __call__(self, batch, context):
        obs = batch["obs"].unsqueeze(0)
        for optimizer in self._optimizers.values():  # each moves its own group by the same loss
            output = self._network(obs, {}, None)
            error = output.value[0] - batch["reward"] - 0.9 * self._target_value(obs)
            optimizer.accumulate(error.square().mean() + 1e-3 * output.params.square().mean())
        norm, _ = [optimizer.apply() for optimizer in self._optimizers.values()]
        self._count += 1
        if self._count % self._config.target_every == 0:
            self._target = {name: array.copy() for name, array in weights_of(self._network).items()}
        return Update(
            {"loss": float(error.detach().square().mean()), "grad_norm": float(norm)},
            priorities=error.detach().abs().numpy().astype(np.float64) + 0.1,
            is_published=self._count % self._config.publish_every == 0,
        )

    @torch.no_grad()
    def _target_value(self, obs):
        tensors = {name: torch.from_numpy(array) for name, array in self._target.items()}
        return torch.func.functional_call(self._network, tensors, (obs, {}, None)).value[0]

    def capture(self):
        return self._target, {"count": self._count}

    def restore(self, arrays, state):
        self._target, self._count = {name: np.array(array) for name, array in arrays.items()}, state["count"]


def fixed_unrolls(config):
    return AssemblerSpec("unroll", config.unroll)


RECIPE = Recipe(
    "stand-in",
    "",
    StandInConfig,
    build_stand_in,
    StochasticPolicy,
    fixed_unrolls,
    StandInStore,
    StandInUpdate,
    TopologySpec("async"),
)
OFFLINE = replace(
    RECIPE,
    name="offline-stand-in",
    config=OfflineConfig,
    store=OfflineStore,
    topology=TopologySpec("offline"),
)


def register():
    """Add both to the algorithms; before the config's module is imported, which lists them."""
    from rollmill.algorithms.registry import RECIPES

    RECIPES.update({"stand-in": RECIPE, "offline-stand-in": OFFLINE})


if __name__ == "__main__":
    import replay_parts  # by its name, so that workers find the classes

    replay_parts.register()
    from rollmill.cli import main

    raise SystemExit(main())
