"""Plays episodes: seeds every reset, sums rewards, and decides when an unroll is over."""

from __future__ import annotations

from collections import deque

import numpy as np

from rollmill import nested
from rollmill.actors.component import Notice
from rollmill.actors.restore import restore_rows
from rollmill.actors.snapshots import snapshot_row, take_snapshots
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.nested import Nested
from rollmill.seeding import episode_seed
from rollmill.spaces import ActionScale
from rollmill.types import QUARANTINE_AFTER, Array, AssemblerSpec, GroupStatus, Outcome, ResumePoint

UNRESTORED = "unrestored"  # topic of a notice: a running episode is lost


class Episodes:
    """One env group in play; every episode is seeded from (root seed, group, environment, episode).

    With the assembler `unroll` episodes follow one another across unrolls. With `episodes` every environment
    plays exactly one episode per unroll and then sits out: taking the first N finished ones instead would favour
    short episodes.

    An environment that fails for good sits out the rest of the unroll and begins a new episode with the next one. If it
    fails in several unrolls in a row it is quarantined: it sits out for the rest of the run.
    """

    def __init__(
        self,
        group: EnvGroup,
        config: EnvConfig,
        assembler: AssemblerSpec,
        root_seed: int,
        number: int,
        action_scale: ActionScale | None = None,  # from the actions that are stored to the environment's
    ) -> None:
        size = group.size
        self.group = group
        self.number = number
        self.owner = f"group.{number}"  # the sender that notices name
        self.notices: deque[Notice] = deque()
        self._scale, self._clip = config.reward_scale, config.reward_clip
        self._action_scale = action_scale
        self._whole_episodes = assembler.kind == "episodes"
        self._steps = assembler.steps
        self._root_seed = root_seed
        self._episode = np.zeros(size, np.int64)  # how many episodes each environment has begun
        self._seeds = np.zeros(size, np.int64)
        self._return = np.zeros(size, np.float64)
        self._length = np.zeros(size, np.int64)
        self._everyone = np.ones(size, np.bool_)
        self._active = self._everyone
        self._final_obs: Nested = nested.map_leaves(np.copy, group.obs)
        self._t = 0

        self._dropped = np.zeros(size, np.bool_)  # dropped out of the running unroll
        self._failures = np.zeros(size, np.int64)
        self._troubles = np.zeros(size, np.int64)
        self._snapshot = np.zeros((size, snapshot_row(group.snapshot_size)), np.uint8)
        self._status: GroupStatus | None = None

    @property
    def status(self) -> GroupStatus:
        """Status of the group after the unroll that the last step ended."""
        assert self._status is not None, "no unroll has ended yet"
        return self._status

    def begin(self) -> tuple[Nested, Array]:
        """Start every environment; the first observation and which rows begin an episode (all)."""
        self._reset(self._everyone)
        self._active = self._playing()
        return self.group.obs, self._everyone

    def resume(self, point: ResumePoint) -> tuple[Nested, Array]:
        """Continue from a resume point; an episode that can't be restored is replaced by the next."""
        self._failures[:] = point.failures
        self._dropped[:] = quarantined = point.failures >= QUARANTINE_AFTER
        self._episode[:] = point.episode - 1
        self._reset(~quarantined)  # the seed of the episode that was running
        self._episode[:] = point.episode
        restored = restore_rows(self.group, point, self._seeds, ~self._dropped, self._action_scale)
        self._return[:], self._length[:] = point.episode_return, point.episode_length
        lost = ~restored & ~self._dropped
        if lost.any():
            which = ", ".join(str(k) for k in np.flatnonzero(lost))
            text = f"the running episodes of environments {which} could not be restored; the next ones begin"
            self.notices.append(Notice(self.owner, text, topic=UNRESTORED))
            self._reset(lost)
        self._active = self._playing()
        return self.group.obs, point.reset | lost

    def give_up(self, rows: list[int]) -> tuple[Nested, Array]:
        """Begin the next episodes in these environments; the observation and which rows these are."""
        lost = np.zeros(self.group.size, np.bool_)
        lost[rows] = True
        self._reset(lost)
        return self.group.obs, lost

    def step(self, action: Array) -> Outcome:
        """Step the environments that are in play and reset those whose episode ended."""
        active = self._active
        if self._action_scale is not None:
            action = self._action_scale(action)
        reward, terminated, truncated = self.group.step(action, active)
        if self.group.troubles:
            self._note_troubles()
        self._t += 1
        self._return += reward
        self._length += active
        over = self._t == self._steps
        if self._whole_episodes:
            playing = active & ~(terminated | truncated | self._dropped)
            over = over or not playing.any()
            if over:
                truncated = truncated | playing
        ended = terminated | truncated
        episode_return, episode_length = self._return.copy(), self._length.copy()
        if ended.any():
            nested.copy_into(self._final_obs, self.group.obs)
            self._reset(ended)
            if self._whole_episodes:
                self._active = self._active & ~ended
        begins = ended
        if over:
            begins = ended | self._end_unroll()
        return Outcome(
            self._shaped(reward),
            reward,
            terminated,
            truncated,
            self._final_obs,
            episode_return,
            episode_length,
            active,
            over,
            self.group.obs,
            begins,
        )

    def close(self) -> None:
        """Close the environments."""
        self.group.close()

    def _end_unroll(self) -> Array:
        """Reset environments that dropped out, unless they are quarantined; which rows begin an episode by that."""
        self._t = 0
        broken = self._dropped.copy()
        self._failures = np.where(broken, self._failures + 1, 0)
        is_retried = broken & (self._failures < QUARANTINE_AFTER)
        for k in np.flatnonzero(broken & (self._failures == QUARANTINE_AFTER)):
            self._notify(f"environment {k} is quarantined: it failed in {QUARANTINE_AFTER} unrolls in a row")
        self._dropped[is_retried] = False
        troubles = self._troubles.copy()
        self._troubles[:] = 0
        if is_retried.any():
            self._reset(is_retried)
        self._active = self._playing()
        if self._snapshot.shape[1]:
            take_snapshots(self.group, self._active, self._snapshot)
        self._status = GroupStatus(self._episode, self._failures, troubles, broken, self._snapshot)
        return self._everyone if self._whole_episodes else is_retried

    def _playing(self) -> Array:
        """Bool [K]: the environments in play at the start of an unroll; all of them, if none dropped out."""
        return ~self._dropped if self._dropped.any() else self._everyone

    def _note_troubles(self) -> None:
        """Collect failures; environments that can't continue sit out the rest of the unroll."""
        while self.group.troubles:
            trouble = self.group.troubles.popleft()
            self._troubles[trouble.index] += 1
            if trouble.is_rebuilt:
                self._notify(f"{trouble.message}; rebuilt and played again up to there", trouble.traceback)
            else:
                self._dropped[trouble.index] = self.group.broken[trouble.index]
                self._notify(f"{trouble.message}; it sits out this unroll", trouble.traceback)
        self._active = self._active & ~self._dropped

    def _notify(self, text: str, traceback: str = "") -> None:
        self.notices.append(Notice(self.owner, text, traceback=traceback))

    def _shaped(self, reward: Array) -> Array:
        if self._scale != 1.0:
            reward = reward * self._scale
        if self._clip is not None:
            reward = np.clip(reward, -self._clip, self._clip)
        return reward.astype(np.float32)

    def _reset(self, mask: Array) -> None:
        for k in np.flatnonzero(mask):
            self._seeds[k] = episode_seed(self._root_seed, self.number, int(k), int(self._episode[k]))
        self.group.reset(mask, self._seeds)
        self._episode[mask] += 1
        self._return[mask] = 0.0
        self._length[mask] = 0
        if self.group.troubles:
            self._note_troubles()
