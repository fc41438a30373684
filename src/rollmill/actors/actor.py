"""The fused actor: one env group and one policy copy in one component, the fast default."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from rollmill.actors.assemble import UnrollAssembler
from rollmill.actors.episodes import Episodes
from rollmill.actors.tickets import Turn
from rollmill.algorithms.policy import Policy
from rollmill.models.weights import WeightsLoader
from rollmill.nested import Nested
from rollmill.seeding import generator
from rollmill.transport.ports import Ports
from rollmill.types import Array, ResumePoint, Ticket


class Actor:
    """Makes one unroll per ticket, with exactly the weights that the ticket names.

    Ports: `tickets` in, `weights` in (cell), `unrolls` out.
    """

    def __init__(self, name: str, episodes: Episodes, policy: Policy, steps: int, root_seed: int, ports: Ports) -> None:
        self.name = name
        self._episodes, self._policy = episodes, policy
        self._steps, self._root_seed = steps, root_seed
        self._turn = Turn(
            ports.receivers["tickets"], ports.readers["weights"], WeightsLoader(policy.network.published())
        )
        self._unrolls = ports.senders["unrolls"]
        self._assembler = UnrollAssembler()
        self._state = policy.initial_state()
        self._obs: Nested = None  # with _reset, from the first unroll on
        self._reset: Array | None = None
        self.notices = episodes.notices
        episodes.owner = name
        self._idle_since = perf_counter()

    def resume(self, points: Mapping[int, ResumePoint]) -> None:
        """Continue from the resume point of this group's actor."""
        if (point := points.get(self._episodes.number)) is not None:
            self._obs, self._reset = self._episodes.resume(point)
            self._state = point.state

    def give_up(self, rows: list[int]) -> None:
        """Begin the next episodes in these environments, as after a resume that could not restore them."""
        self._obs, begun = self._episodes.give_up(rows)
        self._reset = begun if self._reset is None else self._reset | begun

    def work(self) -> bool:
        """One unroll, if there is a ticket, room for it, and the weights that it names."""
        ticket = self._turn.ready()
        room = None if ticket is None else self._unrolls.reserve()
        if ticket is None or room is None:
            return False
        self._policy.begin(ticket.version)
        self._play(ticket, room.arrays)
        self._unrolls.commit(room)
        self._turn.used()
        self._idle_since = perf_counter()
        return True

    def _play(self, ticket: Ticket, out: dict[str, object]) -> None:
        policy, episodes, assembler = self._policy, self._episodes, self._assembler
        noise = policy.noise(generator(self._root_seed, "action", ticket.actor, ticket.sequence), self._steps)
        assembler.begin(out, ticket, self._state)
        if self._reset is None:
            self._obs, self._reset = self._episodes.begin()
        obs, reset, state = self._obs, self._reset, self._state
        started = perf_counter()
        waited, stepping = started - self._idle_since, 0.0
        for t in range(self._steps):
            decision = policy.act(obs, state, reset, noise[t])
            assembler.decided(obs, reset, decision)
            before = perf_counter()
            outcome = episodes.step(decision.action)
            stepping += perf_counter() - before
            obs, reset, state = outcome.obs, outcome.reset, decision.state
            assembler.happened(outcome, state)
            if outcome.over:
                break
        last = policy.finish(obs, state, reset)
        deciding = perf_counter() - started - stepping
        assembler.finish(obs, reset, state, last, episodes.status, (stepping, deciding, waited))
        self._obs, self._reset, self._state = obs, reset, state

    def close(self) -> None:
        """Close the environments."""
        self._episodes.close()
