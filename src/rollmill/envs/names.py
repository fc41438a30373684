"""What an environment id means; Atari games are known by their file names, so that configs load without ale-py."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from rollmill.errors import Refused

# "ALE/Pong-v5" and "PongNoFrameskip-v4" name a game whether or not the emulator is installed.
_MARKED = re.compile(r"ALE/(?P<ale>\w+)-v5|(?P<legacy>\w+)NoFrameskip-v4")
# ale-py has their ROMs but no single-player mode for them; loading one ends the whole process.
_FOR_TWO = ("combat", "joust", "maze_craze", "warlords")


def known_roms() -> list[str]:
    """The games that ale-py can play, in its own snake_case spelling; empty where it is not installed."""
    spec = find_spec("ale_py")  # finds the package without importing it
    if spec is None or spec.origin is None:
        return []
    files = (Path(spec.origin).parent / "roms").glob("*.bin")
    return sorted(path.stem for path in files if path.stem not in _FOR_TWO)


def game_name(rom: str) -> str:
    """The game's name as ids spell it: `ms_pacman` → `MsPacman`."""
    return rom.title().replace("_", "")


def is_atari(env_id: str) -> bool:
    """Whether the id means an Atari game: `ALE/Pong-v5`, `PongNoFrameskip-v4`, or the plain name of a known game.

    All spellings give the same game with our own preprocessing. A plain name that gymnasium would complete to a toy
    of its own ("Blackjack") means the Atari game here; the toy is reached with its version ("Blackjack-v1").
    """
    if _MARKED.fullmatch(env_id):
        return True
    return env_id.isidentifier() and _folded(env_id) in {_folded(rom) for rom in (*known_roms(), *_FOR_TWO)}


def find_rom(env_id: str) -> str:
    """The ROM of an Atari id, or a refusal that names the nearest game."""
    match = _MARKED.fullmatch(env_id)
    name = (match["ale"] or match["legacy"]) if match else env_id
    roms = known_roms()
    by_folded = {_folded(rom): rom for rom in roms}
    if rom := by_folded.get(_folded(name)):
        return rom
    if _folded(name) in map(_folded, _FOR_TWO):
        raise Refused(f"env.id={env_id} is a game for two players, which ale-py can't play alone; choose another game")
    if not roms:
        raise Refused(f"env.id={env_id} needs the extra 'atari': pip install \"rollmill[atari]\"")
    raise Refused(f"env.id={env_id}: no such Atari game; {suggest(name, [game_name(rom) for rom in roms])}")


def _folded(name: str) -> str:
    """Snake_case and PascalCase spellings of one game fold to the same word."""
    return name.replace("_", "").lower()


def suggest(name: str, known: list[str]) -> str:
    """The nearest known name; unlike `errors.nearest` it never prints the whole list, which is too long for a line."""
    if near := get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean '{near[0]}'?"
    return "`rollmill list envs` shows what is known"
