"""Every game that ale-py brings plays here or is refused; presets are bundles of settings."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rollmill import load_config
from rollmill.envs.config import ATARI_PRESETS, AtariConfig, EnvConfig
from rollmill.envs.make import known_environments, make_group
from rollmill.envs.names import known_roms
from rollmill.errors import Refused
from rollmill_envs.atari import game_name

FOR_TWO = ["combat", "joust", "maze_craze", "warlords"]
ON = np.ones(1, bool)


def brought():
    return sorted(path.stem for path in (Path(find_spec("ale_py").origin).parent / "roms").glob("*.bin"))


def test_every_file_is_a_known_game_or_one_for_two():
    assert sorted([*known_roms(), *FOR_TWO]) == brought()


@pytest.mark.parametrize("rom", FOR_TWO)
@pytest.mark.parametrize("spelling", ["ALE/{}-v5", "{}NoFrameskip-v4", "{}"])
def test_a_game_for_two_is_refused_and_not_listed(rom, spelling):
    env_id = spelling.format(game_name(rom))
    with pytest.raises(Refused, match=f"^env.id={env_id} is a game for two players, which ale-py can't play alone"):
        make_group(EnvConfig(id=env_id), 1)
    assert f"ALE/{game_name(rom)}-v5" not in known_environments()


def test_the_command_line_refuses_a_game_for_two(tmp_path):
    """Loading its file would end the process from inside the emulator, with a page of text."""
    file = tmp_path / "combat.yaml"
    file.write_text(json.dumps({"env": {"id": "ALE/Combat-v5"}, "algorithm": {"name": "ppo"}, "train": {"steps": 10}}))
    command = [sys.executable, "-m", "rollmill", "train", str(file), "--run", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "game for two players" in done.stderr
    assert "Attempt to wrap ROM" not in done.stderr + done.stdout


PECULIAR = ("qbert", "tic_tac_toe_3d", "lost_luggage", "skiing", "pong")  # each once showed something of its own


@pytest.mark.parametrize(
    "roms",
    [
        pytest.param(PECULIAR, marks=pytest.mark.slow, id="peculiar"),
        *(
            pytest.param([rom for rom in known_roms() if rom[0] == initial], marks=pytest.mark.prove, id=initial)
            for initial in sorted({rom[0] for rom in known_roms()})
        ),
    ],
)
def test_every_game_plays_and_continues_from_a_snapshot(roms):
    """With sticky actions and all that the game allows; the copy has just lived through another episode."""
    for rom in roms:
        config = EnvConfig(id=f"ALE/{game_name(rom)}-v5", atari=AtariConfig(noop_max=5, sticky=0.25, full_actions=True))
        group, copy = make_group(config, 1), make_group(config, 1)
        assert group.action_space.n == (9 if rom in ("lost_luggage", "skiing") else 18), rom
        draw = np.random.default_rng(0)
        group.reset(ON, np.array([3]))
        copy.reset(ON, np.array([8]))
        for each in (group, copy):
            for _ in range(6):
                each.step(draw.integers(group.action_space.n, size=1), ON)
        data = group.snapshot(0)
        assert len(data) <= group.snapshot_size, rom
        for each in (group, copy):
            each.reset(ON, np.array([3]))
        if data:
            for each in (group, copy):
                each.restore(0, data)
        for _ in range(6):
            action = draw.integers(group.action_space.n, size=1)
            results = [tuple(array.tolist() for array in each.step(action, ON)) for each in (group, copy)]
            assert results[0] == results[1], rom
            np.testing.assert_array_equal(group.obs, copy.obs, err_msg=rom)
        assert group.obs.std() > 0 or rom == "tic_tac_toe_3d", f"{rom} shows nothing"  # the one that thinks first


@pytest.mark.parametrize("rom", ["qbert", "pong"])
def test_a_first_episode_looks_like_a_later_one(rom):
    """Qbert leaves ten pixels undrawn at its start."""
    config = EnvConfig(id=f"ALE/{game_name(rom)}-v5", atari=AtariConfig(noop_max=0))
    fresh, used = make_group(config, 1), make_group(config, 1)
    used.reset(ON, np.array([1]))
    for _ in range(30):
        used.step(np.array([2]), ON)
    for each in (fresh, used):
        each.reset(ON, np.array([5]))
    for _ in range(5):
        np.testing.assert_array_equal(fresh.obs, used.obs)
        for each in (fresh, used):
            each.step(np.array([3]), ON)


def test_a_game_whose_screen_no_state_holds_has_no_snapshots():
    group = make_group(EnvConfig(id="ALE/TicTacToe3D-v5"), 1)
    group.reset(ON, np.array([1]))
    assert (group.snapshot_size, group.snapshot(0)) == (0, b"")


def test_a_preset_fills_in_what_is_not_given():
    assert AtariConfig(preset="machado").sticky == 0.25
    assert AtariConfig(preset="machado").max_frames == 18_000
    assert AtariConfig(preset="apex").one_life
    assert AtariConfig(preset="apex").full_actions
    mixed = AtariConfig(preset="machado", full_actions=False, noop_max=7)
    assert (mixed.full_actions, mixed.noop_max, mixed.sticky) == (False, 7, 0.25)


def test_the_classic_preset_is_what_is_played_by_default():
    assert AtariConfig(preset="classic").model_dump(exclude={"preset"}) == AtariConfig().model_dump(exclude={"preset"})


@pytest.mark.parametrize("preset", ATARI_PRESETS)
def test_a_resolved_preset_loads_again_as_it_was(preset):
    config = AtariConfig(preset=preset, noop_max=3)
    assert AtariConfig.model_validate_json(config.model_dump_json()) == config


def test_a_preset_works_from_a_config_file_and_a_wrong_one_is_refused():
    values = {"env": {"id": "ALE/Pong-v5", "atari": {"preset": "dopamine"}}, "algorithm": {"name": "ppo"}}
    loaded = load_config({**values, "train": {"steps": 100}})
    assert loaded.config.env.atari.sticky == 0.25
    values["env"]["atari"]["preset"] = "dopamin"
    with pytest.raises(Refused, match=r"env\.atari\.preset.*did you mean 'dopamine'"):
        load_config({**values, "train": {"steps": 100}})
