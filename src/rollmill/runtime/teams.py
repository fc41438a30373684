"""What to do about workers that die, hang or grow too large: a state machine without processes and without a clock.

Steps under way between components of several processes (roles `central` and `split`) are lost with any of them, so
those are replaced together: a *team*. A team with a fault goes through: kill those that still live, recover what they
held, wait, start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

FIRST_DELAY_SECONDS = 0.5  # before the second replacement in a row; each further one waits twice as long
CLOSE_SECONDS = 1.0  # that a failed worker has to close its environments


@dataclass(frozen=True)
class Fault:
    """Something that went wrong with a worker."""

    place: str
    component: str
    reason: str
    traceback: str = ""
    is_from_outside: bool = False  # it says nothing about the worker itself
    grace: float = CLOSE_SECONDS  # seconds that the worker has to end by itself


class TeamStep(Enum):
    """What the supervisor does next for a team."""

    RECOVER = "keep what the dead workers finished, renew their links and send their tickets again"
    START = "start the workers"


@dataclass(frozen=True)
class Kill:
    """Kill the workers at these places."""

    places: tuple[str, ...]


@dataclass(frozen=True)
class GiveUp:
    """Replacing the workers again has no use: end the run."""

    fault: Fault
    message: str


@dataclass(frozen=True)
class Replaced:
    """The new workers are ready."""

    fault: Fault
    seconds: float  # since the fault was noticed
    attempt: int  # replacements in a row


Action = TeamStep | Kill | GiveUp | Replaced


@dataclass
class _Incident:
    fault: Fault
    noticed: float
    kill_at: dict[str, float]  # when those that still live are killed
    start_at: float | None = None  # when the new workers are started; None before the old ones have ended


@dataclass
class Team:
    """Workers that can only be replaced together, and how they fared."""

    places: tuple[str, ...]
    nodes: frozenset[str]
    actors: tuple[int, ...]
    living: set[str] = field(default_factory=set)  # places that were started and have not ended
    starting: set[str] = field(default_factory=set)  # places that are not ready
    replay_seconds: float = 0.0  # that the new workers took to restore their episodes
    _has_run: bool = False  # every place has been ready once
    _incident: _Incident | None = None
    _replaced: _Incident | None = None  # what the workers that are starting now replace
    _attempts: int = 0  # replacements in a row
    _first: Fault | None = None  # that made them necessary
    _unrolls: int = 0  # that had come at the last of them
    _heard: tuple[int, int, float] = (0, 0, 0.0)  # its unrolls when the last one came, those of all actors, and when

    @property
    def is_at_fault(self) -> bool:
        """Whether something has gone wrong and the new workers are not started."""
        return self._incident is not None

    @property
    def has_to_recover(self) -> bool:
        """Whether all workers are dead, and nothing was done about it."""
        return self._incident is not None and not self.living and self._incident.start_at is None

    @property
    def start_at(self) -> float | None:
        """When the workers are to be started; None if they are not."""
        return None if self._incident is None else self._incident.start_at

    def start(self) -> None:
        """The workers are started now."""
        self._incident, self._replaced, self.replay_seconds = None, self._incident, 0.0
        self.living, self.starting = set(self.places), set(self.places)

    def ready(self, place: str, replay_seconds: float) -> None:
        """A worker begins to work."""
        self.starting.discard(place)
        self.replay_seconds = max(self.replay_seconds, replay_seconds)

    def blame(self, fault: Fault, now: float) -> None:
        """Note what went wrong first; the rest of the team is of no use without this place."""
        if self._incident is None:
            kill_at = dict.fromkeys(self.places, now) | {fault.place: now + fault.grace}
            self._incident = _Incident(fault, now, kill_at)

    def decide(self, now: float, unrolls: int, restarts: int) -> Action | None:
        """What to do next, None if nothing; `unrolls` have come from its actors, all that the dead ones finished."""
        incident = self._incident
        if incident is None:
            return None if self.starting else self._announce(now)
        if self.living:
            due = tuple(sorted(place for place in self.living if now >= incident.kill_at[place]))
            incident.kill_at |= dict.fromkeys(due, now + CLOSE_SECONDS)
            return Kill(due) if due else None
        if incident.start_at is None:
            return self._recover(incident, now, unrolls, restarts)
        return TeamStep.START if now >= incident.start_at else None

    def silence(self, now: float, taken: Sequence[int], missing: Sequence[int], limit: float) -> str | None:
        """How long nothing came from workers that have tickets, while others continued; None if that is expected.

        `taken` is the number of unrolls of each actor, `missing` the actors whose unrolls are waited for.
        """
        own, total = sum(taken[actor] for actor in self.actors), sum(taken)
        is_waited_for = not self.starting and not set(missing).isdisjoint(self.actors)
        if not is_waited_for or own != self._heard[0] or not self._heard[2]:
            self._heard = (own, total, now)
        silent = now - self._heard[2]
        if silent < limit or total - self._heard[1] < 2 * len(taken):
            return None  # if all are silent it is the whole run that stalls
        return f"made no unroll for {silent:.0f} s while others did (runtime.stall_seconds)"

    def _announce(self, now: float) -> Replaced | None:
        self._has_run = True
        old, self._replaced = self._replaced, None
        return None if old is None else Replaced(old.fault, now - old.noticed, self._attempts)

    def _recover(self, incident: _Incident, now: float, unrolls: int, restarts: int) -> Action:
        """All are dead: set the time of the new ones, unless there have been too many."""
        if unrolls > self._unrolls:
            self._attempts, self._first = 0, None
        self._unrolls, self._first, self._replaced = unrolls, self._first or incident.fault, None
        is_hopeless = not self._has_run and not incident.fault.is_from_outside
        if is_hopeless or self._attempts >= restarts:
            message = self._first.reason
            if self._attempts:
                message += f"; replaced {self._attempts} times in a row (runtime.restarts), each time without success"
            return GiveUp(self._first, message)
        self.starting = set(self.places)
        incident.start_at = now + (FIRST_DELAY_SECONDS * 2 ** (self._attempts - 1) if self._attempts else 0.0)
        self._attempts += 1
        return TeamStep.RECOVER
