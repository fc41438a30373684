"""The way of consumed unrolls from the learner to the observers that want them: slots are lent, nothing is copied."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from time import perf_counter

from rollmill.events import Progress
from rollmill.learners.tap import Trajectory
from rollmill.observe.loans import Loan, UnrollLent
from rollmill.observe.mailbox import Mailbox


class TrajectoryTap:
    """Lends consumed unrolls to observers; see `learners.tap.Tap`.

    It never keeps more than `spare_slots` slots of one actor, which are there beyond what training needs: so no
    observer, however slow, keeps an actor waiting. Beyond that an observer loses unrolls by its own overflow rule.
    Slots are given back with the next offer, in the learner's thread, which also replaces workers: a slot that
    another thread gave back meanwhile could be counted twice.
    """

    def __init__(self, readers: Sequence[tuple[Mailbox, float]], spare_slots: int) -> None:
        self._readers = readers  # and the fraction of the training from which on each of them wants unrolls
        self._spare_slots = spare_slots
        self._lent: Counter[int] = Counter()  # slots by actor
        self._read: deque[Trajectory] = deque()  # by everybody, to be given back
        self._changed = threading.Condition()

    def offer(self, trajectory: Trajectory, progress: Progress) -> bool:
        """Take the slot over for the observers that want it; False if none does or may."""
        self._give_back()  # not counted as handing over: without us the learner would do it itself
        begun, fraction = perf_counter(), progress.fraction
        wanting = [
            mailbox
            for mailbox, after in self._readers
            if fraction >= after and not mailbox.is_closed and mailbox.wants_next(UnrollLent)
        ]
        if not wanting:
            return False
        is_ours = any(self._wait(trajectory.actor, mailbox) for mailbox in wanting)
        if is_ours:
            self._lent[trajectory.actor] += 1
            loan = Loan(trajectory, len(wanting), self._take_back)
            for mailbox in wanting:
                lent = UnrollLent(progress, loan)
                if not mailbox.accept(lent):
                    lent.release()
        else:
            for mailbox in wanting:
                mailbox.refuse(UnrollLent)
        spent = (perf_counter() - begun) / len(wanting)
        for mailbox in wanting:
            mailbox.delivery.handover_seconds += spent
        return is_ours

    def _wait(self, actor: int, mailbox: Mailbox) -> bool:
        """Whether another slot of the actor may be lent; for the sake of a "block" observer the run waits for that."""
        if self._lent[actor] < self._spare_slots:
            return True
        if mailbox.observer.overflow != "block":
            return False
        handled = -1
        while handled != mailbox.handled:  # else it took nothing for as long as patience lasts
            handled = mailbox.handled
            with mailbox.blocking() as seconds:
                deadline = perf_counter() + seconds
                while self._lent[actor] >= self._spare_slots and (left := deadline - perf_counter()) > 0:
                    with self._changed:
                        self._changed.wait_for(lambda: self._read, timeout=left)
                    self._give_back()
            has_room = self._lent[actor] < self._spare_slots
            if has_room or seconds < mailbox.patience or mailbox.is_hurried():
                return has_room
        mailbox.give_up()
        return False

    def _take_back(self, trajectory: Trajectory) -> None:
        """The last reader is done; in any thread."""
        with self._changed:
            self._read.append(trajectory)
            self._changed.notify_all()

    def _give_back(self) -> None:
        """Let the actors have the slots that everybody has read."""
        while self._read:
            trajectory = self._read.popleft()
            self._lent[trajectory.actor] -= 1
            trajectory.release()
