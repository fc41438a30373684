"""The way of consumed unrolls from the learner to the observers that want them: slots are lent, nothing is copied."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from rollmill import nested
from rollmill.events import Progress
from rollmill.observe.calls import UnrollLent, UserObserver
from rollmill.observe.hooks import Unroll
from rollmill.observe.mailbox import Mailbox
from rollmill.stores.store import LeasedUnroll
from rollmill.types import Array


@dataclass
class _Loan:
    """One slot that several observers read."""

    actor: int
    release: Callable[[], None]  # gives the slot back
    readers: int  # that are not done


class TrajectoryTap:
    """Lends consumed unrolls to observers; see `learners.tap.Tap`.

    It never keeps more than `spare_slots` slots of one actor, which are there beyond what training needs: so no
    observer, however slow, keeps an actor waiting. Beyond that an observer loses unrolls by its own overflow rule.
    Slots are given back with the next offer, in the learner's thread, which also replaces workers: a slot that
    another thread gave back meanwhile could be counted twice.
    """

    def __init__(self, readers: Sequence[Mailbox[UserObserver]], spare_slots: int) -> None:
        self._readers, self._spare_slots = readers, spare_slots
        self._lent: Counter[int] = Counter()  # slots by actor
        self._read: deque[_Loan] = deque()  # by every reader, to be given back
        self._changed = threading.Condition()

    def offer(self, unroll: LeasedUnroll, release: Callable[[], None], progress: Progress) -> bool:
        """Take the slot over for the observers that want it; False if none does or may."""
        self._give_back()  # not counted as handing over: without us the learner would do it itself
        begun, fraction = perf_counter(), progress.fraction
        readers = [mailbox for mailbox in self._readers if not mailbox.is_closed]
        wanting = [mailbox for mailbox in readers if fraction >= mailbox.observer.trajectories_after]
        if not wanting:
            return False
        has_slot = partial(self._has_slot, unroll.ticket.actor)
        is_ours = has_slot() or any(mailbox.hold_up(self._changed, has_slot) for mailbox in wanting)
        if is_ours:
            loan = _Loan(unroll.ticket.actor, release, len(wanting))
            self._lend(loan, unroll, progress, wanting)
        else:
            for mailbox in wanting:
                mailbox.refuse()
        spent = (perf_counter() - begun) / len(wanting)
        for mailbox in wanting:
            mailbox.delivery.handover_seconds += spent
        return is_ours

    def _lend(
        self, loan: _Loan, unroll: LeasedUnroll, progress: Progress, readers: Sequence[Mailbox[UserObserver]]
    ) -> None:
        self._lent[loan.actor] += 1
        # Read-only, so that no observer can change what others read.
        arrays = {name: nested.map_leaves(_read_only, tree) for name, tree in unroll.arrays.items()}
        lent = UnrollLent(progress, Unroll(*unroll.ticket, progress.updates, arrays), partial(self._leave, loan))
        for mailbox in readers:
            if not mailbox.accept(lent):
                self._leave(loan)

    def _leave(self, loan: _Loan) -> None:
        """A reader is done; in any thread."""
        with self._changed:
            loan.readers -= 1
            if loan.readers == 0:
                self._read.append(loan)
                self._changed.notify_all()

    def _has_slot(self, actor: int) -> bool:
        """Whether another slot of the actor may be lent."""
        self._give_back()
        return self._lent[actor] < self._spare_slots

    def _give_back(self) -> None:
        """Let the actors have the slots that every reader is done with."""
        while self._read:
            loan = self._read.popleft()
            self._lent[loan.actor] -= 1
            loan.release()


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
