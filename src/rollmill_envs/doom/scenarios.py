"""The scenarios that the vizdoom package brings, and the changes that some of them need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PREFIX = "doom/"


@dataclass(frozen=True)
class Conventions:
    """What is changed about a scenario as its file has it."""

    buttons: tuple[str, ...] | None = None  # None: those of the file
    rewards: Mapping[str, float] = field(default_factory=dict)
    health_bonus: float = 0.0  # for a decision after which there is more health than before
    hides_weapon: bool = False  # and crosshair, decals and particles, which only distract
    map: str | None = None
    bots: int | None = None  # None: not a game of several players


_GATHERING = Conventions(
    buttons=("TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD", "MOVE_BACKWARD"),
    rewards={"living": 0.01, "death": 0.0},
    health_bonus=1.0,
    hides_weapon=True,
)
# Sample Factory's, with which its published returns were measured
SAMPLE_FACTORY = {"health_gathering": _GATHERING, "health_gathering_supreme": _GATHERING}

# These don't work with their own files: their maps have only deathmatch starts, or another name.
NECESSARY = {
    "cig": Conventions(rewards={"frag": 1.0}, bots=4),
    "multi": Conventions(rewards={"frag": 1.0}, bots=4),
    "multi_duel": Conventions(rewards={"frag": 1.0}, bots=1),
    "doom": Conventions(map="e1m1"),
    "freedoom1": Conventions(map="e1m1"),
}


def package_folder() -> Path | None:
    """Where vizdoom is installed, found without importing it; None if it isn't."""
    spec = find_spec("vizdoom")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def names() -> list[str]:
    """The id of every scenario; none where vizdoom is not installed."""
    folder = package_folder()
    if folder is None:
        return []
    return sorted(f"{PREFIX}{path.stem}" for path in (folder / "scenarios").glob("*.cfg"))


def conventions_of(scenario: str, of_sample_factory: bool) -> Conventions:
    """What to change about a scenario."""
    known = NECESSARY | (SAMPLE_FACTORY if of_sample_factory else {})
    return known.get(scenario, Conventions())
