"""The roles of the fused actor as components of their own: environment, inference, collector.

They exchange two messages per step. A *scene* is what an environment group shows, with what the last step led to; a
*decision* is the policy's answer. Both are broadcast: the collector sees every scene and every decision and puts
them together with the same assembler that the fused actor uses, so the unrolls are equal bit for bit.

    environment ──scene──► inference ──decision──► environment
          └────────► collector ◄────────┘  ──unroll──► learner
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from rollmill import nested
from rollmill.actors.assemble import UnrollAssembler
from rollmill.actors.component import Component, Notice
from rollmill.actors.episodes import Episodes
from rollmill.actors.tickets import Turn
from rollmill.algorithms.policy import Policy
from rollmill.errors import Stalled
from rollmill.fields import LAST_WORD
from rollmill.models.weights import WeightsLoader
from rollmill.nested import Nested
from rollmill.seeding import generator
from rollmill.transport.ports import Lease, Ports
from rollmill.types import Array, Decision, GroupStatus, Outcome, ResumePoint, Ticket

_STEP = tuple(field for field in Outcome._fields if field not in ("final_obs", "obs", "reset"))  # copied every step


class Environment:
    """Steps one group with the actions it receives. Ports: `decisions` in, `scenes` out."""

    def __init__(self, name: str, episodes: Episodes, ports: Ports) -> None:
        self.name = name
        self._episodes = episodes
        self._decisions, self._scenes = ports.receivers["decisions"], ports.senders["scenes"]
        self._room: Lease | None = None
        self._first: tuple[Nested, Array] | None = None  # the first scene after a resume
        self._has_begun = False
        self.notices = episodes.notices
        episodes.owner = name

    def resume(self, points: Mapping[int, ResumePoint]) -> None:
        """Continue from the resume point of this group."""
        if (point := points.get(self._episodes.number)) is not None:
            self._first = self._episodes.resume(point)

    def work(self) -> bool:
        """Show the first scene, then one step per decision; room for the scene comes first."""
        self._room = self._room or self._scenes.reserve()
        if self._room is None:
            return False
        if not self._has_begun:
            self._has_begun = True
            obs, reset = self._first or self._episodes.begin()
            self._show(None, obs, reset, 0.0)
            return True
        lease = self._decisions.take()
        if lease is None:
            return False
        if lease.arrays["row"] == LAST_WORD:  # is for the collector
            self._decisions.release(lease)
            return True
        before = perf_counter()
        outcome = self._episodes.step(lease.arrays["action"])
        self._decisions.release(lease)
        self._show(outcome, outcome.obs, outcome.reset, perf_counter() - before)
        return True

    def _show(self, outcome: Outcome | None, obs: Nested, reset: Array, seconds: float) -> None:
        assert self._room is not None
        scene = self._room.arrays
        if outcome is not None:
            for field in _STEP:
                scene[field][...] = getattr(outcome, field)
            if outcome.reset.any():
                nested.copy_into(scene["final_obs"], outcome.final_obs)
            if outcome.over:
                for field, value in self._episodes.status._asdict().items():
                    scene[field][...] = value
        nested.copy_into(scene["obs"], obs)
        scene["reset"][:] = reset
        scene["seconds"][...] = seconds
        self._scenes.commit(self._room)
        self._room = None

    def close(self) -> None:
        """Close the environments."""
        self._episodes.close()


class _GroupContext:
    """The inference state of one group: a policy copy, its recurrent state, ticket and noise.

    Each group has a copy of its own because its ticket may name another version than those of other groups.
    """

    def __init__(self, policy: Policy, turn: Turn) -> None:
        self.policy, self.turn = policy, turn
        self.state = policy.initial_state()
        self.ticket: Ticket | None = None
        self.noise: Any = None
        self.row = 0
        self.scene: Lease | None = None  # shown, not yet answered
        self.room: Lease | None = None  # for the answer


class Inference(Component):
    """Decides for many groups: one fixed-shape forward per group, because merging groups would change the bits.

    Ports, for each group i: `scenes.i` in, `tickets.i` in, `decisions.i` out; `weights` in (cell).
    """

    def __init__(self, name: str, policies: Sequence[Policy], steps: int, root_seed: int, ports: Ports) -> None:
        self.name = name
        weights = ports.readers["weights"]
        self._contexts = [
            _GroupContext(
                policy, Turn(ports.receivers[f"tickets.{i}"], weights, WeightsLoader(policy.network.published()))
            )
            for i, policy in enumerate(policies)
        ]
        self._steps, self._root_seed = steps, root_seed
        self._scenes = [ports.receivers[f"scenes.{i}"] for i in range(len(policies))]
        self._decisions = [ports.senders[f"decisions.{i}"] for i in range(len(policies))]
        self.notices: deque[Notice] = deque()

    def resume(self, points: Mapping[int, ResumePoint]) -> None:
        """Restore the recurrent state of each group."""
        for group, point in points.items():
            self._contexts[group].state = point.state

    def work(self) -> bool:
        """Answer every group that has shown a scene and holds a ticket."""
        progressed = False
        for i in range(len(self._contexts)):
            progressed = self._answer(i) or progressed
        return progressed

    def _answer(self, i: int) -> bool:
        context = self._contexts[i]
        context.room = context.room or self._decisions[i].reserve()
        context.scene = context.scene or self._scenes[i].take()
        if context.scene is None or context.room is None:
            return False
        scene = context.scene.arrays
        if context.row and scene["over"]:  # that step ended the unroll: this scene opens the next one
            context.ticket, context.row = None, 0
            context.turn.used()
            if context.policy.last_records:
                self._send_last(i, context.room, context.policy.finish(scene["obs"], context.state, scene["reset"]))
                context.room = None
                return True
        if context.ticket is None and not self._accept_ticket(context):
            return False
        before = perf_counter()
        decision = context.policy.act(scene["obs"], context.state, scene["reset"], context.noise[context.row])
        self._scenes[i].release(context.scene)
        self._send(i, context.room, decision, perf_counter() - before)
        context.scene = context.room = None
        context.state = decision.state
        context.row += 1
        return True

    def _accept_ticket(self, context: _GroupContext) -> bool:
        ticket = context.turn.ready()
        if ticket is None:
            return False
        rng = generator(self._root_seed, "action", ticket.actor, ticket.sequence)
        context.ticket, context.row, context.noise = ticket, 0, context.policy.noise(rng, self._steps)
        context.policy.begin(ticket.version)
        return True

    def _send(self, i: int, room: Lease, decision: Decision, seconds: float) -> None:
        context, out = self._contexts[i], room.arrays
        out["ticket"][:] = context.ticket
        out["row"][...] = context.row
        out["action"][...] = decision.action
        for name, record in decision.records.items():
            out[name][...] = record
        nested.copy_into(out["state_before"], context.state)
        nested.copy_into(out["state"], decision.state)
        out["seconds"][...] = seconds
        self._decisions[i].commit(room)

    def _send_last(self, i: int, room: Lease, records: Mapping[str, Array]) -> None:
        room.arrays["row"][...] = LAST_WORD
        for name, record in records.items():
            room.arrays[name][...] = record
        self._decisions[i].commit(room)


class Collector(Component):
    """Puts the scenes and decisions of one group together into unrolls; between two unrolls it has no state.

    Ports: `scenes` in, `decisions` in, `unrolls` out.
    """

    def __init__(self, name: str, records: Sequence[str], last_records: Sequence[str], ports: Ports) -> None:
        self.name, self._records, self._last_records = name, records, last_records
        self._scenes, self._decisions = ports.receivers["scenes"], ports.receivers["decisions"]
        self._unrolls = ports.senders["unrolls"]
        self._assembler = UnrollAssembler()
        self._scene: Lease | None = None  # the scene that waits for its decision
        self._decision: Lease | None = None  # the decision that waits for what it leads to
        self._room: Lease | None = None
        self._seconds = [0.0, 0.0, 0.0]
        self._idle_since = perf_counter()
        self.notices: deque[Notice] = deque()

    def work(self) -> bool:
        """Take one scene or one decision, whichever is due."""
        return self._take_decision() if self._scene is not None else self._take_scene()

    def _take_scene(self) -> bool:
        lease = self._scenes.take()
        if lease is None:
            return False
        scene = lease.arrays
        if self._decision is not None:
            state = self._decision.arrays["state"]
            self._assembler.happened(Outcome(**{field: scene[field] for field in Outcome._fields}), state)
            self._seconds[0] += float(scene["seconds"])
            if not (scene["over"] and self._last_records):  # else the policy's last word is on its way
                if scene["over"]:
                    self._finish(scene, state, {})
                self._decisions.release(self._decision)
                self._decision = None
        self._scene = lease
        return True

    def _take_decision(self) -> bool:
        lease = self._decisions.take()
        if lease is None:
            return False
        assert self._scene is not None
        answer, scene = lease.arrays, self._scene.arrays
        if answer["row"] == LAST_WORD:
            assert self._decision is not None
            self._finish(scene, self._decision.arrays["state"], {name: answer[name] for name in self._last_records})
            self._decisions.release(self._decision)
            self._decisions.release(lease)
            self._decision = None
            return True
        if answer["row"] == 0:
            self._room = self._unrolls.reserve()
            if self._room is None:
                # Tickets are given out only for free slots, so this is a defect, not back-pressure.
                raise Stalled(f"{self.name}: a ticket was used but every slot of its unrolls is taken")
            ticket = Ticket(*(int(n) for n in answer["ticket"]))
            self._assembler.begin(self._room.arrays, ticket, answer["state_before"])
            self._seconds = [0.0, 0.0, perf_counter() - self._idle_since]
        records = {name: answer[name] for name in self._records}
        decision = Decision(answer["action"], records, answer["state"])
        self._assembler.decided(scene["obs"], scene["reset"], decision)
        self._seconds[1] += float(answer["seconds"])
        self._scenes.release(self._scene)
        self._scene, self._decision = None, lease
        return True

    def _finish(self, scene: dict[str, Any], state: Nested, records: Mapping[str, Array]) -> None:
        assert self._room is not None
        stepping, deciding, waiting = self._seconds
        status = GroupStatus(**{field: scene[field] for field in GroupStatus._fields})
        self._assembler.finish(scene["obs"], scene["reset"], state, records, status, (stepping, deciding, waiting))
        self._unrolls.commit(self._room)
        self._room = None
        self._idle_since = perf_counter()
