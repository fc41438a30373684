"""What a runtime can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from rollmill.types import ResumePoint


class Notice(NamedTuple):
    """Something that users should see, though the run continues."""

    component: str
    text: str
    level: str = "warning"
    traceback: str = ""
    topic: str = ""  # a fixed word for programs; the text is for people


class Component(Protocol):
    """A node of the graph, running in some process; it only sees its ports."""

    name: str
    notices: deque[Notice]  # emptied by the runtime

    def resume(self, points: Mapping[int, ResumePoint]) -> None:
        """Continue from these resume points; called once, before the first work(). By default nothing is restored."""
        return

    def work(self) -> bool:
        """Do one piece of work if the ports allow it now; False when there is nothing to do. Never waits."""

    def close(self) -> None:
        """Release simulators and other resources; by default there are none."""
        return
