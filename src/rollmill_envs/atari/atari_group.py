"""Atari games over ale-py's plain emulator interface, preprocessed as the literature does (Machado et al., 2018).

ale-py's own vector environment reloads the ROM for every seeded reset (115 ms) and can't be snapshotted. Here an
episode starts from a cached emulator state, and no-ops and sticky actions come from the episode's own generator, so
that seed + actions determine it in any process, and a snapshot continues anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from rollmill import spaces
from rollmill.envs.config import AtariConfig, EnvConfig
from rollmill.envs.group import StepResult, Trouble, even_sided, needs_reset
from rollmill.envs.names import FOR_TWO, LISTED, MARKED, folded, known_roms
from rollmill.errors import Refused, nearest
from rollmill.types import Array, FrameStack
from rollmill_envs.atari import game_name
from rollmill_envs.atari.atari_snapshot import AtariSnapshot, encoded_size, from_bytes, to_bytes

_NOOP, _FIRE = 0, 1  # in the numbering of the console
_CONSOLE_RATE = 60.0  # pictures per second on a television
# These games draw nothing while the computer player computes, so the screen is not part of the emulator's state.
_WITHOUT_SNAPSHOTS = ("tic_tac_toe_3d",)
_POWER_ON_SEED = 0  # of the emulator: what the console's memory holds when it is switched on


class AtariGame:
    """One game, drawing into `stack` (uint8 [N, size, size], oldest frame first), which its group owns."""

    def __init__(self, env_id: str, config: AtariConfig, time_limit: int | None, stack: Array) -> None:
        ale_py, cv2 = _import_emulator(env_id)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before the constructor, which prints a banner
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", _POWER_ON_SEED)
        self._ale.setFloat("repeat_action_probability", 0.0)  # sticky actions are ours: the emulator's have no seed
        file = Path(ale_py.roms.get_rom_path(find_rom(env_id)))
        if ale_py.ALEInterface.isSupportedROM(file) is None:  # loading it would end the process
            raise Refused(f"env.id={env_id}: this ale-py has no rules for {file.name}; choose another game")
        self._ale.loadROM(file)
        self._ale.reset_game()
        actions = self._ale.getLegalActionSet() if config.full_actions else self._ale.getMinimalActionSet()
        self.actions = [int(action.value) for action in actions]

        self._config = config
        self._time_limit = time_limit
        self._presses_fire = config.fire_reset and _FIRE in self.actions
        self._state_from_bytes = ale_py.ALEState
        self._resize = cv2.resize
        self._interpolation = cv2.INTER_AREA
        self._previous_screen, self._screen = np.zeros((2, *self._ale.getScreenDims()), np.uint8)
        self._start = self._ale.cloneSystemState()
        self.emulator_bytes = len(self._start.serialize())  # of a state, give or take a few
        # restoring a state doesn't restore the picture, so the first one is kept with it
        self._start_screen = self._ale.getScreenGrayscale().reshape(self._screen.shape)

        self.stack = stack
        self.is_running = False
        self._generator = Generator(PCG64(0))
        self._last_action = _NOOP
        self._frames = 0  # since the console was reset
        self._decisions = 0
        self._lives = 0

    def reset(self, seed: int) -> None:
        """Start the episode of this seed: a fresh game and 1 to `noop_max` frames of doing nothing."""
        self._generator = Generator(PCG64(SeedSequence(seed)))
        noops = int(self._generator.integers(1, self._config.noop_max + 1)) if self._config.noop_max else 0
        opening = [_NOOP] * noops + [_FIRE] * self._presses_fire
        # Not every frame draws every pixel, and the picture is not part of a state: pixels of the last episode would
        # remain visible (Qbert). A reset of the console blackens the screen.
        self._ale.reset_game()
        self._ale.restoreSystemState(self._start)
        for action in opening:
            self._ale.act(action)
        if self._ale.game_over():  # a game that no-ops end starts without them
            self._ale.restoreSystemState(self._start)
            opening = []
        if opening:
            self._ale.getScreenGrayscale(self._screen)
        else:
            self._screen[...] = self._start_screen
        self._draw()
        self.stack[:-1] = self.stack[-1]
        self._last_action = _NOOP
        self._frames = len(opening)
        self._decisions = 0
        self._lives = self._ale.lives()
        self.is_running = True

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Hold an action (an index into `actions`) for `frame_skip` frames: (reward, terminated, truncated).

        After the game is over the emulator is idle, so the picture is then that of the true last frame.
        """
        reward = self._play(self.actions[action])
        self.stack[:-1] = self.stack[1:]
        self._draw()
        self._frames += self._config.frame_skip
        self._decisions += 1
        lives = self._ale.lives()
        lost_life = lives < self._lives
        self._lives = lives
        terminated = self._ale.game_over() or (self._config.one_life and lost_life)
        truncated = self._frames >= self._config.max_frames or self._decisions == self._time_limit
        self.is_running = not (terminated or truncated)
        return reward, terminated, truncated

    def render(self) -> Array:
        """The screen in colour, as a person would see it."""
        return np.asarray(self._ale.getScreenRGB())

    def info(self) -> dict[str, Any]:
        """Lives left and emulator frames since the console was reset."""
        return {"lives": self._lives, "frames": self._frames}

    def snapshot(self) -> AtariSnapshot:
        """The whole state of the episode."""
        return AtariSnapshot(
            emulator=self._ale.cloneSystemState().serialize(),
            stack=self.stack.copy(),
            generator=dict(self._generator.bit_generator.state),
            last_action=self._last_action,
            frames=self._frames,
            decisions=self._decisions,
            lives=self._lives,
            is_running=self.is_running,
        )

    def restore(self, snapshot: AtariSnapshot) -> None:
        """Continue from a snapshot of the same game and config."""
        self._ale.restoreSystemState(self._state_from_bytes(snapshot.emulator))
        self.stack[...] = snapshot.stack
        self._generator.bit_generator.state = snapshot.generator
        self._last_action = snapshot.last_action
        self._frames = snapshot.frames
        self._decisions = snapshot.decisions
        self._lives = snapshot.lives
        self.is_running = snapshot.is_running

    def _play(self, action: int) -> float:
        """Run the frames of one decision and leave the maximum of the last two in `_screen`."""
        skip, sticky = self._config.frame_skip, self._config.sticky
        reward = 0
        for frame in range(skip):
            if not sticky or self._generator.random() >= sticky:
                self._last_action = action
            reward += self._ale.act(self._last_action)
            if frame == skip - 2:
                self._ale.getScreenGrayscale(self._previous_screen)
        self._ale.getScreenGrayscale(self._screen)
        if skip > 1:  # sprites flicker: many games draw them on every other frame only
            np.maximum(self._previous_screen, self._screen, out=self._screen)
        return float(reward)

    def _draw(self) -> None:
        """Shrink the screen into the newest place of the stack."""
        newest = self.stack[-1]
        self._resize(self._screen, newest.shape, newest, interpolation=self._interpolation)


class AtariGroup:
    """K games of one kind; the contract is `EnvGroup`. Rewards are raw: the actor clips them."""

    def __init__(self, config: EnvConfig, size: int) -> None:
        pixels = config.atari.size
        self.size = size
        self.broken = np.zeros(size, bool)
        self.troubles: deque[Trouble] = deque()
        self.frame_skip = config.atari.frame_skip
        self.frame_rate = _CONSOLE_RATE / self.frame_skip
        count = config.stacked_frames
        self.stacks: Mapping[str, FrameStack] = {"": FrameStack(count, 0)} if count > 1 else {}
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, (count, pixels, pixels), np.uint8)
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.obs = self.observation_spec.lead(size).zeros()
        self.games = [AtariGame(config.id, config.atari, config.time_limit, row) for row in self.obs]
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(len(self.games[0].actions))
        self._rom = find_rom(config.id)
        size_of_one = encoded_size(self._rom, self.games[0].emulator_bytes, self.obs[0].nbytes)
        self.snapshot_size = 0 if self._rom in _WITHOUT_SNAPSHOTS else size_of_one
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)
        self._truncated = np.zeros(size, bool)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Start a fresh game where `mask` is True."""
        for k in np.flatnonzero(mask).tolist():
            self.games[k].reset(int(seeds[k]))

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """One decision of `frame_skip` frames in the active rows."""
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        for k in np.flatnonzero(active).tolist():
            game = self.games[k]
            if not game.is_running:
                raise needs_reset(k)
            self._reward[k], self._terminated[k], self._truncated[k] = game.step(int(action[k]))
        return StepResult(self._reward, self._terminated, self._truncated)

    def snapshot(self, k: int) -> bytes:
        """Emulator, picture, generator and counters; b"" for a game whose screen can't be restored."""
        return to_bytes(self._rom, self.games[k].snapshot()) if self.snapshot_size else b""

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot of the same game."""
        self.games[k].restore(from_bytes(self._rom, data, self.obs[k].shape))

    def render(self, k: int) -> Array:
        """The screen of game k."""
        return even_sided(self.games[k].render())

    def info(self, k: int) -> dict[str, Any]:
        """Lives and frames of game k."""
        return self.games[k].info()

    def close(self) -> None:
        """Drop the emulators; each frees its memory with its last reference."""
        self.games.clear()


def _import_emulator(env_id: str) -> tuple[Any, Any]:
    """The modules ale_py and cv2, which only this extra needs."""
    try:
        import ale_py
        import ale_py.roms
        import cv2
    except ImportError as error:
        raise Refused(f"env.id={env_id} needs the extra 'atari': pip install \"rollmill[atari]\"") from error
    return ale_py, cv2


def find_rom(env_id: str) -> str:
    """The ROM of an Atari id, or a refusal that names the nearest game."""
    match = MARKED.fullmatch(env_id)
    name = (match["ale"] or match["legacy"]) if match else env_id
    roms = known_roms()
    by_folded = {folded(rom): rom for rom in roms}
    if rom := by_folded.get(folded(name)):
        return rom
    if folded(name) in map(folded, FOR_TWO):
        raise Refused(f"env.id={env_id} is a game for two players, which ale-py can't play alone; choose another game")
    if not roms:
        raise Refused(f"env.id={env_id} needs the extra 'atari': pip install \"rollmill[atari]\"")
    hint = nearest(name, [game_name(rom) for rom in roms], LISTED)
    raise Refused(f"env.id={env_id}: no such Atari game; {hint}")
