"""From buttons to an action space: which numbers the engine gets for which action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.types import Array

OPPOSITES = (
    ("TURN_LEFT", "TURN_RIGHT"),
    ("MOVE_FORWARD", "MOVE_BACKWARD"),
    ("MOVE_LEFT", "MOVE_RIGHT"),
    ("LOOK_UP", "LOOK_DOWN"),
    ("SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON"),
)
DELTA = "_DELTA"  # how the names of buttons end that take a number: degrees or units per tic
_LEVELS = np.linspace(-10.0, 10.0, 11).tolist()  # of such a button, as Sample Factory has them

Presses = list[float]  # a number for each of the configured buttons


class Flat:
    """One choice among lists of buttons that are pressed together; the first is usually to press none."""

    def __init__(self, buttons: Sequence[str], combinations: Sequence[Sequence[str]]) -> None:
        self.buttons = tuple(buttons)
        self.space: gym.Space[Any] = gym.spaces.Discrete(len(combinations))
        self._presses = [[float(button in pressed) for button in buttons] for pressed in combinations]

    def presses(self, action: Array) -> Presses:
        """What to press for an action."""
        return self._presses[int(action)]


class Groups:
    """A choice for every group of buttons of which only one makes sense at a time."""

    def __init__(self, buttons: Sequence[str]) -> None:
        groups = _grouped(buttons)
        self.buttons = tuple(button for group in groups for button in group)
        self._choices = [_choices(group) for group in groups]
        self.space: gym.Space[Any] = gym.spaces.MultiDiscrete([len(choices) for choices in self._choices])

    def presses(self, action: Array) -> Presses:
        """What to press for an action."""
        chosen = zip(self._choices, action.tolist(), strict=True)
        return [number for choices, index in chosen for number in choices[index]]


def flat_actions(buttons: Sequence[str]) -> Flat:
    """Nothing, or one of the buttons."""
    return Flat(buttons, [(), *((button,) for button in buttons)])


def combined_actions(combinations: Sequence[Sequence[str]]) -> Flat:
    """The listed combinations and no others."""
    buttons = dict.fromkeys(button for pressed in combinations for button in pressed)
    return Flat(list(buttons), combinations)


def _grouped(buttons: Sequence[str]) -> list[tuple[str, ...]]:
    """The buttons in groups, in the order of each group's first."""
    weapons = tuple(button for button in buttons if button.startswith("SELECT_WEAPON"))
    groups: dict[tuple[str, ...], None] = {}
    for button in buttons:
        pair = next((pair for pair in OPPOSITES if button in pair), None)
        if pair is not None:
            group = tuple(part for part in pair if part in buttons)
        else:
            group = weapons if button in weapons else (button,)
        groups[group] = None
    return list(groups)


def _choices(group: tuple[str, ...]) -> list[Presses]:
    """The first presses nothing; a button that takes a number has its levels instead."""
    if group[0].endswith(DELTA):
        return [[level] for level in _LEVELS]
    return [[0.0] * len(group), *([float(i == pressed) for i in range(len(group))] for pressed in range(len(group)))]
