"""What an environment id means; Atari games are known by their file names, so that configs load without ale-py."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

# "ALE/Pong-v5" and "PongNoFrameskip-v4" name a game whether or not the emulator is installed.
MARKED = re.compile(r"ALE/(?P<ale>\w+)-v5|(?P<legacy>\w+)NoFrameskip-v4")
# ale-py has their ROMs but no single-player mode for them; loading one ends the whole process.
FOR_TWO = ("combat", "joust", "maze_craze", "warlords")
LISTED = "`rollmill list envs` shows what is known"  # there are too many to name them in a message


def known_roms() -> list[str]:
    """The games that ale-py can play, in its own snake_case spelling; empty where it is not installed."""
    spec = find_spec("ale_py")  # finds the package without importing it
    if spec is None or spec.origin is None:
        return []
    files = (Path(spec.origin).parent / "roms").glob("*.bin")
    return sorted(path.stem for path in files if path.stem not in FOR_TWO)


def is_atari(env_id: str) -> bool:
    """Whether the id means an Atari game: `ALE/Pong-v5`, `PongNoFrameskip-v4`, or the plain name of a known game.

    All spellings give the same game with our own preprocessing. A plain name that gymnasium would complete to a toy
    of its own ("Blackjack") means the Atari game here; the toy is reached with its version ("Blackjack-v1").
    """
    if MARKED.fullmatch(env_id):
        return True
    return env_id.isidentifier() and folded(env_id) in {folded(rom) for rom in (*known_roms(), *FOR_TWO)}


def folded(name: str) -> str:
    """Snake_case and PascalCase spellings of one game fold to the same word."""
    return name.replace("_", "").lower()
