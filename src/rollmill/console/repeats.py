"""Texts that are said again and again, shown once each."""

from __future__ import annotations

from collections import Counter

KEPT = 100  # different texts; one that holds a number is new each time, and may not fill memory and screen


class Repeats:
    """Tells whether a text is new, and counts those that are not."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._others = 0

    def is_new(self, text: str) -> bool:
        """Count the text; True if it should be shown."""
        first, _, _ = text.partition("\n")
        if first not in self._times and len(self._times) >= KEPT:
            self._others += 1
            return False
        self._times[first] += 1
        return self._times[first] == 1

    def lines(self) -> list[str]:
        """What was not shown, with its number."""
        repeated = [f"said {times} times: {text}" for text, times in self._times.items() if times > 1]
        return [*repeated, *([f"{self._others} others, see the logs"] if self._others else [])]
