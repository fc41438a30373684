"""The fused actor: one env group and one policy copy in one component, the fast default."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from rollmill.actors.assemble import UnrollAssembler
from rollmill.actors.episodes import Episodes
from rollmill.actors.tickets import take_ticket
from rollmill.algorithms.policy import Policy
from rollmill.models.weights import WeightsLoader
from rollmill.nested import Nested
from rollmill.seeding import generator
from rollmill.transport.ports import Ports
from rollmill.types import Array, Border, Ticket


class Actor:
    """Makes one unroll per ticket, with exactly the weights that the ticket names.

    Ports: `tickets` in, `weights` in (cell), `unrolls` out.
    """

    def __init__(self, name: str, episodes: Episodes, policy: Policy, steps: int, root_seed: int, ports: Ports) -> None:
        self.name = name
        self._episodes, self._policy = episodes, policy
        self._steps, self._root_seed = steps, root_seed
        self._tickets, self._weights, self._unrolls = ports["tickets"], ports["weights"], ports["unrolls"]
        self._loader = WeightsLoader(policy.network)
        self._assembler = UnrollAssembler()
        self._state = policy.initial_state()
        self._obs: Nested = None  # with _reset, from the first unroll on
        self._reset: Array | None = None
        self.notices = episodes.notices
        episodes.owner = name
        self._idle_since = perf_counter()
        self._ticket: Ticket | None = None  # held while its weights or its slot are not there yet

    def resume(self, borders: Mapping[int, Border]) -> None:
        """Stand where the actor of this group stood."""
        if (border := borders.get(self._episodes.number)) is not None:
            self._obs, self._reset = self._episodes.resume(border)
            self._state = border.state

    def work(self) -> bool:
        """One unroll, if there is a ticket, room for it, and the weights that it names."""
        self._ticket = self._ticket or take_ticket(self._tickets)
        ticket = self._ticket
        if ticket is None or not self._loader.load(self._weights, ticket.version):
            return False
        room = self._unrolls.reserve()
        if room is None:
            return False
        self._ticket = None
        self._policy.begin(ticket.version)
        self._play(ticket, room.arrays)
        self._unrolls.commit(room)
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
        deciding = perf_counter() - started - stepping
        assembler.finish(obs, reset, state, episodes.standing, (stepping, deciding, waited))
        self._obs, self._reset, self._state = obs, reset, state

    def close(self) -> None:
        """Close the environments."""
        self._episodes.close()
