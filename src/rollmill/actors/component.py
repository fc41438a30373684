"""What a runtime can run."""

from __future__ import annotations

from typing import Protocol


class Component(Protocol):
    """A node of the graph, living in some process; it only ever sees its ports."""

    name: str

    def work(self) -> bool:
        """Do one piece of work if the ports allow it now; False when there is nothing to do. Never waits."""

    def close(self) -> None:
        """Let go of simulators and the like."""
