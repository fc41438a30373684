"""Tests before training how exactly an environment can be restored: two are played, restored and compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from rollmill import nested, seeding
from rollmill.actors.restore import restore_rows
from rollmill.actors.snapshots import snapshot_row, take_snapshots
from rollmill.algorithms.registry import find_recipe
from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup, EnvironmentFailed
from rollmill.envs.make import opened_group
from rollmill.envs.snapshot_bytes import row_bytes
from rollmill.errors import RollmillError
from rollmill.settings import ExperimentConfig
from rollmill.spaces import action_spec
from rollmill.types import Array, ResumePoint

EXACT = "exact"
EXACT_LATER = "exact from the next episode"

_HISTORY = (3, 2)  # steps of episodes before, so that a fresh environment is compared with a used one
_STEPS = 24  # from there to where the episodes are restored
_FUTURE = 8  # steps that must then be equal


def run_grade(config: ExperimentConfig) -> str:
    """How exactly a run could continue after an interruption."""
    for role, device in config.runtime.devices.model_dump().items():
        if device != "cpu":
            return f"approximate: runtime.devices.{role}={device} doesn't repeat its sums bit for bit"
    topology = find_recipe(config.algorithm.name).topology.kind
    grade = EXACT if topology == "offline" else resume_grade(config.env)
    if grade == EXACT and topology == "async":
        return f"{EXACT} state, asynchronous: unrolls in flight are made again, with newer weights"
    return grade


def resume_grade(config: EnvConfig, seconds: float = 2.0) -> str:
    """How exactly the environment can be restored: `exact`, `exact from the next episode` or `approximate: <reason>`.

    Two environments are played and restored in fresh ones. A slow environment plays fewer steps: no step is begun after
    `seconds`, except the one that every stage needs.
    """
    with ExitStack() as closing:

        def fresh_player() -> _Player:
            return _Player(closing.enter_context(opened_group(config, min(2, config.group_size))))

        try:
            fault = _trial(fresh_player, seeding.generator(0, "resume trial"), monotonic(), seconds)
        except RollmillError as error:  # names the environment itself
            return f"approximate: {error}"
        except Exception as error:
            return f"approximate: env.id={config.id} raised {type(error).__name__}: {error}"
    if fault is None:
        return EXACT
    return EXACT_LATER if fault == EXACT_LATER else f"approximate: env.id={config.id} {fault}"


def _trial(fresh_player: Callable[[], _Player], draw: Generator, start: float, seconds: float) -> str | None:
    """Why restoring is not exact; None if it is."""
    original = fresh_player()
    for steps in (*_HISTORY, _STEPS):
        original.begin(original.everyone, _seeds(original, draw))
        original.play(draw, steps, start + seconds / 3)
    copy = fresh_player()
    copy.begin(copy.everyone, original.seeds)
    begins_equally = copy.first == original.first
    restored = restore_rows(copy.group, original.point(), copy.seeds, copy.everyone)
    is_restored = restored.all() and _continues_equally(copy, original, draw, start + seconds)
    seeds = _seeds(original, draw)
    for player in (original, copy):
        player.begin(player.everyone, seeds)
    next_begins_equally = copy.first == original.first
    # a snapshot may hold what the seed doesn't determine, such as the number of the episode
    if is_restored and next_begins_equally and (begins_equally or original.group.snapshot_size):
        return None
    if not (begins_equally and next_begins_equally):
        return "gives another first observation for the same seed"
    if not _continues_equally(copy, original, draw, start + seconds):
        return "continues differently for the same seed and actions"
    return EXACT_LATER


class _Player:
    """A group in play, with seeds and actions to restore its running episodes."""

    def __init__(self, group: EnvGroup) -> None:
        self.group = group
        self.everyone = np.ones(group.size, bool)
        self.seeds = np.zeros(group.size, np.int64)
        self.first = [b""] * group.size  # observations
        self.actions: list[list[Array]] = [[] for _ in range(group.size)]
        self.returns = np.zeros(group.size)

    def begin(self, rows: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Start episodes; a single failure of an environment ends the trial."""
        self.seeds[rows] = seeds[rows]
        self.group.reset(rows, self.seeds)
        self._refuse_troubles()
        for k in np.flatnonzero(rows).tolist():
            self.first[k] = row_bytes(self.group.obs, k)
            self.actions[k].clear()
            self.returns[k] = 0.0

    def step(self, action: Array, rows: NDArray[np.bool_]) -> tuple[list[bytes], NDArray[np.bool_]]:
        """Step; returns the outcome as bytes, and which episodes ended."""
        for k in np.flatnonzero(rows).tolist():
            self.actions[k].append(action[k].copy())
        result = self.group.step(action, rows)
        self._refuse_troubles()
        self.returns += result.reward
        outcome = [array.tobytes() for array in result] + self.shown()
        return outcome, result.terminated | result.truncated

    def play(self, draw: Generator, steps: int, deadline: float) -> None:
        """Random steps, and a few more if all episodes have just begun: they must be restored in the middle."""
        for t in range(steps + _FUTURE):
            if t and (monotonic() > deadline or t >= steps) and any(self.actions):
                return
            action = random_actions(self.group.action_space, self.group.size, draw)
            _, ended = self.step(action, self.everyone)
            self.begin(ended, _seeds(self, draw))

    def point(self) -> ResumePoint:
        """What another group needs to continue from here."""
        group, zeros = self.group, np.zeros(self.group.size, np.int64)
        snapshots = np.zeros((group.size, snapshot_row(group.snapshot_size)), np.uint8)
        if snapshots.size:
            take_snapshots(group, self.everyone, snapshots)
        spec, obs = action_spec(group.action_space), nested.map_leaves(np.copy, group.obs)
        actions = tuple(np.array(taken, spec.dtype).reshape(-1, *spec.shape) for taken in self.actions)
        lengths = np.array([len(taken) for taken in self.actions])
        return ResumePoint(obs, zeros > 0, {}, zeros, self.returns.copy(), lengths, zeros, snapshots, actions)

    def shown(self) -> list[bytes]:
        """The observations of all rows."""
        return [row_bytes(self.group.obs, k) for k in range(self.group.size)]

    def _refuse_troubles(self) -> None:
        if self.group.troubles:
            raise EnvironmentFailed(self.group.troubles[0].message)


def _seeds(player: _Player, draw: Generator) -> NDArray[np.int64]:
    return draw.integers(2**31, size=player.group.size)


def _continues_equally(copy: _Player, original: _Player, draw: Generator, deadline: float) -> bool:
    """Whether equal actions have equal outcomes in both, also in the episodes that follow."""
    for t in range(_FUTURE):
        if t and monotonic() > deadline:
            break
        action = random_actions(copy.group.action_space, copy.group.size, draw)
        (outcome, ended), (copy_outcome, _) = (player.step(action, player.everyone) for player in (original, copy))
        if outcome != copy_outcome:
            return False
        seeds = _seeds(original, draw)
        for player in (original, copy):
            player.begin(ended, seeds)
        if copy.shown() != original.shown():
            return False
    return True
