"""How much of the bare engine's speed our Doom group keeps: both in this process, pinned to one core, in turns.

python benchmarks/doom.py [--scenario basic] [--size 8] [--steps 2000] [--rounds 7]

The bare engines are called as anybody must call them: the action, the state, the next episode. Our group is measured
with the whole screen as observation, where all that it does is overhead, and with the 128 × 72 pixels that it shows by
default, beside engines whose screens are made smaller by the same call.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from time import perf_counter

import cv2
import numpy as np
from numpy.random import Generator

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill_envs.doom.doom_spec import make_spec
from rollmill_envs.doom.engine import DoomEngine

Play = Callable[[Generator, int], None]
WHOLE = {"width": 160, "height": 120}


def bare_engines(env_id: str, size: int, is_resizing: bool = False) -> Play:
    """Steps engines in turn, each with the time limit of its scenario."""
    image = np.zeros((72, 128, 3), np.uint8)
    spec = make_spec(EnvConfig(id=env_id, group_size=1))
    engines = [DoomEngine(spec, spec.settings.resolution) for _ in range(size)]
    for engine in engines:
        engine.begin(1)
    games = [engine.game for engine in engines]
    for game in games:
        game.set_episode_timeout(spec.tics)
    buttons = len(spec.actions.buttons)
    actions = [[0.0] * buttons, *([float(i == pressed) for i in range(buttons)] for pressed in range(buttons))]

    def play(generator: Generator, steps: int) -> None:
        for row in generator.integers(len(actions), size=(steps // size, size)).tolist():
            for game, action in zip(games, row, strict=True):
                game.make_action(actions[action], spec.settings.frame_skip)
                state = game.get_state()
                if state is None:
                    game.set_seed(int(generator.integers(2**31)))
                    game.new_episode()
                    state = game.get_state()
                if is_resizing:
                    cv2.resize(state.screen_buffer, (128, 72), image, interpolation=cv2.INTER_NEAREST)

    return play


def our_group(env_id: str, size: int, **args: int) -> Play:
    """Steps a group through the interface that actors use."""
    group = make_group(EnvConfig(id=env_id, args=args), size)
    everyone = np.ones(size, bool)
    group.reset(everyone, np.ones(size, np.int64))

    def play(generator: Generator, steps: int) -> None:
        for action in generator.integers(int(group.action_space.n), size=(steps // size, size)):  # type: ignore[attr-defined]
            result = group.step(action, everyone)
            over = result.terminated | result.truncated
            if over.any():
                group.reset(over, generator.integers(2**31, size=size))

    return play


def main() -> None:
    """Print steps per second of all three, best and median, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="basic")
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the engines inherit it
    env_id, size = f"doom/{options.scenario}", options.size
    players = {
        "bare engines": bare_engines(env_id, size),
        "our group, whole screen": our_group(env_id, size, **WHOLE),
        "bare engines, 128 x 72": bare_engines(env_id, size, is_resizing=True),
        "our group, 128 x 72": our_group(env_id, size),
    }
    speeds: dict[str, list[float]] = {name: [] for name in players}
    for number in range(options.rounds + 1):
        for name, play in players.items():
            generator = np.random.default_rng(number)
            start = perf_counter()
            play(generator, options.steps)
            if number:  # the first round warms up
                speeds[name].append(options.steps / (perf_counter() - start))
    for name, found in speeds.items():
        if name.startswith("bare"):
            bare = found
        best, median = max(found), statistics.median(found)
        paired = statistics.median(ours / theirs for ours, theirs in zip(found, bare, strict=True))
        ratios = f"{best / max(bare):.3f} of the best, {paired:.3f} within a round"
        print(f"{name}: best {best:.0f}, median {median:.0f} steps/s: {ratios}")


if __name__ == "__main__":
    main()
