"""A running engine: a process that belongs to this one, has no window and makes no sound."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollmill.errors import RollmillError
from rollmill.launch.children import bare_program
from rollmill_envs.doom import launcher
from rollmill_envs.doom.doom_spec import DoomSpec

# a multiplayer game with one player, so that there is no network either
_ALONE = "-host 1 -deathmatch +sv_spawnfarthest 1 +sv_forcerespawn 1 +sv_noautoaim 1 +viz_respawn_delay 0"


class DoomEngine:
    """One game; episodes of single-player scenarios are begun in it, others need an engine each."""

    def __init__(self, spec: DoomSpec, resolution: str) -> None:
        self._spec = spec
        self._resolution = resolution
        self.is_deathmatch = spec.bots is not None
        # at once, because starting takes long and callers expect that when an environment is made
        self.game: Any = None if self.is_deathmatch else _start(spec, resolution, seed=0)

    def begin(self, seed: int) -> None:
        """Start the episode of a seed (32 bits)."""
        if not self.is_deathmatch:
            self.game.set_seed(seed)
            self.game.new_episode()
            return
        # the engine carries the state of its generators over from one game of several players to the next
        self.close()
        self.game = _start(self._spec, self._resolution, seed)
        for _ in range(self._spec.bots or 0):
            self.game.send_game_command("addbot")

    def revive(self) -> None:
        """Let the player of a deathmatch continue after a death."""
        if self.game.is_player_dead():
            self.game.respawn_player()

    def look(self) -> Any:
        """The engine's state, with `screen_buffer` (uint8 [H, W, 3]) and `game_variables`; None after the end."""
        return self.game.get_state()

    def close(self) -> None:
        """End the engine."""
        if self.game is not None:
            self.game.close()
            self.game = None


def _start(spec: DoomSpec, resolution: str, seed: int) -> Any:
    """A game with its engine started by the launcher, and without a name in shared memory."""
    import vizdoom

    game = spec.make_game()
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_screen_resolution(vizdoom.ScreenResolution.__members__[f"RES_{resolution.upper()}"])
    game.set_seed(seed)
    if spec.bots is not None:
        game.add_game_args(_ALONE)
    engine = Path(vizdoom.__file__).parent / "vizdoom"
    # The library starts one program without arguments of ours, so that program is a script; it has no name, and the
    # child inherits it, so that it can be read even if we are dead by then.
    script = os.memfd_create("doom launcher", 0)
    words = bare_program(launcher.__file__, os.getpid(), script, engine)
    try:
        os.write(script, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'.encode())
        game.set_vizdoom_path(f"/proc/self/fd/{script}")
        game.init()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise RollmillError(f"env.id={spec.env_id}: the engine doesn't start: {reason}") from error
    finally:
        os.close(script)
        for segment in launcher.segments_of(game.get_instance_id()):
            with suppress(FileNotFoundError):
                os.unlink(segment)
    return game
