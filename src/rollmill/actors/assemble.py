"""Writes steps into unrolls: the only writer of the unroll layout (`fields.Fields`)."""

from __future__ import annotations

from collections.abc import Mapping

from rollmill import nested
from rollmill.nested import Nested
from rollmill.types import Array, Decision, GroupStatus, Outcome, Ticket


class UnrollAssembler:
    """Writes one unroll row by row: `begin`, then `decided` and `happened` in turn, then `finish`."""

    def __init__(self) -> None:
        self._out: dict[str, Nested] = {}
        self._t = 0

    def begin(self, out: dict[str, Nested], ticket: Ticket, state: Nested) -> None:
        """Start an unroll with the recurrent state in which it begins."""
        self._out, self._t = out, 0
        out["ticket"][:] = ticket
        nested.copy_into(out["state"], state)

    def decided(self, obs: Nested, reset: Array, decision: Decision) -> None:
        """Write observation and decision of row t; call it before the step, which overwrites `obs`."""
        out, t = self._out, self._t
        nested.assign(out["obs"], t, obs)
        out["reset"][t] = reset
        out["action"][t] = decision.action
        for name, record in decision.records.items():
            out[name][t] = record

    def happened(self, outcome: Outcome, state: Nested) -> None:
        """Write the outcome of row t; `state` is the recurrent state after it, kept where an episode ended."""
        out, t = self._out, self._t
        out["reward"][t] = outcome.reward
        out["raw_reward"][t] = outcome.raw_reward
        out["terminated"][t] = outcome.terminated
        out["truncated"][t] = outcome.truncated
        out["episode_return"][t] = outcome.episode_return
        out["episode_length"][t] = outcome.episode_length
        out["valid"][t] = outcome.valid
        ended = outcome.terminated | outcome.truncated
        if ended.any():
            nested.assign(out["final_obs"], (t, ended), nested.index(outcome.final_obs, ended))
            nested.assign(out["final_state"], (t, ended), nested.index(state, ended))
        self._t += 1

    def finish(
        self,
        obs: Nested,
        reset: Array,
        state: Nested,
        records: Mapping[str, Array],
        status: GroupStatus,
        seconds: tuple[float, float, float],
    ) -> None:
        """What follows the last row, the policy's last records, the group's status, and where the time went."""
        out, t = self._out, self._t
        nested.assign(out["obs"], t, obs)
        out["reset"][t] = reset
        nested.copy_into(out["last_state"], state)
        out["seconds"][:] = seconds
        out["length"][...] = t
        for field, value in (*records.items(), *status._asdict().items()):
            out[field][...] = value
