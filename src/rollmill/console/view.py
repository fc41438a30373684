"""What a display shows: plain data, which can be drawn or printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A moment of some work, for both ways to show it."""

    bars: Sequence[Sequence[str | float]]  # rows of equal length; a float is a bar of that length, 0 to 1
    lines: Sequence[str]  # what is printed where nothing can be redrawn
    head: Sequence[str] = ()  # above the columns of the bars
    facts: Sequence[Mapping[str, str]] = ()  # below the bars: a line each, of names and values
