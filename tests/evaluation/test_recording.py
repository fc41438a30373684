"""Dumps and videos: what is in the files is what was played."""

from __future__ import annotations

import json
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.play import recorder
from rollmill.play.evaluate import evaluate
from rollmill.play.evaluation_folder import EvaluationFolder
from rollmill.play.playing import Episode, Played
from rollmill.play.recorder import Recording, TrajectoryFile
from rollmill.play.video import DIMMED, VideoFile, write_grid

av = pytest.importorskip("av")


def pictures(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def replayed(env: EnvConfig, dump) -> tuple[list, list]:
    """What a fresh environment shows and pays for the seed and the actions of a trajectory."""
    group = make_group(env, 1)
    one = np.ones(1, bool)
    group.reset(one, np.array([int(dump["seed"])]))
    seen, paid = [nested.map_leaves(np.copy, group.obs)], []
    for action in dump["action"]:
        result = group.step(action[None], one)
        seen.append(nested.map_leaves(np.copy, group.obs))
        paid.append((float(result.reward[0]), bool(result.terminated[0]), bool(result.truncated[0])))
    group.close()
    return seen, paid


@pytest.mark.parametrize("env_id", ["CartPole-v1", "probe/dict", "Pong"])
def test_a_trajectory_is_the_episode_that_its_seed_and_actions_make(env_id, tmp_path):
    env = EnvConfig(id=env_id, time_limit=12, group_size=2)
    overrides = {"env.time_limit": 12, "env.group_size": 2}
    played = {"policy": "random", "env": env_id, "episodes": 3, "dump": True, "baselines": False}
    evaluate(None, overrides, out=tmp_path / "out", **played)
    for number in range(3):
        dump = np.load(tmp_path / "out" / "trajectories" / f"episode-{number:05}.npz")
        seen, paid = replayed(env, dump)
        assert len(dump["action"]) == len(paid) > 0
        assert paid == list(zip(*(dump[key].tolist() for key in ("reward", "terminated", "truncated")), strict=True))
        assert paid[-1][1] or paid[-1][2]
        names = {"observation": lambda obs: obs}
        if env_id == "probe/dict":
            names = {"observation/image": lambda obs: obs["image"]}
            names["observation/body/vector"] = lambda obs: obs["body"]["vector"]
        for name, leaf in names.items():
            assert np.array_equal(dump[name], np.concatenate([leaf(obs) for obs in seen]))
            assert dump[name].dtype == leaf(seen[0]).dtype
        assert float(dump["return"]) == pytest.approx(dump["reward"].sum())


def test_info_has_a_line_for_every_observation(tmp_path):
    words = {"policy": "constant:0", "env": "Pong", "episodes": 1, "dump": True, "info": True, "baselines": False}
    evaluate(None, {"env.time_limit": 5, "env.atari.noop_max": 0}, out=tmp_path / "out", **words)
    lines = (tmp_path / "out" / "trajectories" / "episode-00000.info.jsonl").read_text().splitlines()
    frames = [json.loads(line)["frames"] for line in lines]
    assert frames == [frames[0] + 4 * t for t in range(6)]


def test_a_long_episode_does_not_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "IN_MEMORY", 1000)
    group = make_group(EnvConfig(id="CartPole-v1"), 1)
    one = np.ones(1, bool)
    group.reset(one, np.zeros(1, np.int64))
    file = TrajectoryFile(tmp_path / "long.npz", False)
    file.see(group, 0)
    seen = [group.obs[0].copy()]
    for t in range(200):
        result = group.step(np.array([t % 2]), one)
        file.step(group, 0, np.array([t % 2]), result)
        seen.append(group.obs[0].copy())
        if result.terminated[0]:
            group.reset(one, np.array([t]))
    assert file._columns["observation"]._data._rolled, "the column should be in a file by now"
    file.finish(Played(Episode(3, 0), 200.0, 200, False, True, 0.0))
    dump = np.load(tmp_path / "long.npz")
    assert np.array_equal(dump["observation"], seen)
    assert dump["action"].tolist() == [0, 1] * 100
    assert int(dump["episode"]) == 3


@pytest.mark.parametrize(("env_id", "size", "rate"), [("CartPole-v1", (400, 600), 50), ("Pong", (210, 160), 15)])
def test_a_video_has_the_right_size_rate_and_number_of_pictures(env_id, size, rate, tmp_path):
    words = {"policy": "random", "env": env_id, "episodes": 3, "video": 2, "grid": True, "baselines": False}
    outcome = evaluate(None, {"env.time_limit": 15}, out=tmp_path / "out", **words)
    folder = tmp_path / "out" / "video"
    assert sorted(path.name for path in folder.iterdir()) == ["episode-00000.mp4", "episode-00001.mp4", "grid.mp4"]
    rows = [line.split(",") for line in (tmp_path / "out" / "episodes.csv").read_text().splitlines()[1:]]
    lengths = [int(row[4]) for row in rows]
    for number in range(2):
        with av.open(str(folder / f"episode-{number:05}.mp4")) as container:
            stream = container.streams.video[0]
            frames = list(container.decode(video=0))
            assert (stream.height, stream.width) == size
            assert stream.average_rate == Fraction(rate)
            assert stream.codec_context.name in ("h264", "mpeg4")
            assert stream.pix_fmt == "yuv420p"
        assert len(frames) == lengths[number] + 1  # the first observation, then one per decision
        assert frames[0].time == 0.0
        assert frames[-1].time == pytest.approx(lengths[number] / rate)
    grid = pictures(folder / "grid.mp4")
    assert grid[0].shape == (size[0], 2 * size[1], 3)
    assert len(grid) == max(lengths[:2]) + 1
    assert outcome.record["files"]["video"] == 3


def test_a_video_shows_what_the_environment_draws(tmp_path):
    """Pictures of known colours come back within what the codec may change."""
    file = VideoFile(tmp_path / "colours.mp4", 12.5)
    shades = [10, 90, 170, 250]
    for shade in shades:
        file.add(np.full((32, 48, 3), shade, np.uint8))
    file.finish()
    assert [int(picture.mean().round()) for picture in pictures(tmp_path / "colours.mp4")] == pytest.approx(
        shades, abs=3
    )
    with av.open(str(tmp_path / "colours.mp4")) as container:
        assert container.streams.video[0].average_rate == Fraction(25, 2)


def test_in_a_grid_those_that_are_over_stand_still_and_dimmed(tmp_path):
    for name, count, shade in (("short", 2, 200), ("long", 4, 100)):
        file = VideoFile(tmp_path / f"{name}.mp4", 10)
        for _ in range(count):
            file.add(np.full((32, 32, 3), shade, np.uint8))
        file.finish()
    write_grid([tmp_path / "short.mp4", tmp_path / "long.mp4"], tmp_path / "grid.mp4")
    shown = [(picture[8:24, 8:24].mean(), picture[8:24, 40:56].mean()) for picture in pictures(tmp_path / "grid.mp4")]
    assert [left for left, _ in shown] == pytest.approx([200, 200, 200 * DIMMED, 200 * DIMMED], abs=4)
    assert [right for _, right in shown] == pytest.approx([100] * 4, abs=4)


def test_a_large_grid_is_scaled_down(tmp_path):
    file = VideoFile(tmp_path / "large.mp4", 10)
    file.add(np.zeros((800, 1200, 3), np.uint8))
    file.finish()
    write_grid([tmp_path / "large.mp4"] * 4, tmp_path / "grid.mp4")
    height, width, _ = pictures(tmp_path / "grid.mp4")[0].shape
    assert height <= 1080
    assert width <= 1920
    assert height % 2 == width % 2 == 0


def test_a_video_that_was_cut_short_plays_up_to_there(tmp_path):
    file = VideoFile(tmp_path / "cut.mp4", 10)
    noise = np.random.Generator(np.random.PCG64(0))
    for _ in range(200):
        file.add(noise.integers(0, 255, (64, 64, 3), np.uint8))
    (draft,) = tmp_path.iterdir()  # nobody has closed it
    (tmp_path / "copy.mp4").write_bytes(draft.read_bytes())
    with av.open(str(tmp_path / "copy.mp4")) as container, suppress(av.error.InvalidDataError):  # where it was cut
        shown = 0
        for _ in container.decode(video=0):
            shown += 1
    assert shown >= 160  # a fragment of two seconds and what the encoder has in hand are missing
    file.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["copy.mp4"]


def test_what_was_finished_beyond_the_wanted_steps_leaves_no_file_even_if_nobody_heard_of_it(tmp_path):
    """A worker may finish episode 4 and be ended before it can say so; 3 were wanted."""
    recording = Recording(tmp_path, video=9, dump=True, info=True)
    output = EvaluationFolder(recording, {}, ["random"], seed=0)
    for number in range(5):
        paths = recording.trajectory_path(number), recording.video_path(number)
        for path in (*paths, paths[0].with_suffix(".info.jsonl")):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        if number < 4:
            output.add("random", Played(Episode(number, number), 1.0, 1, True, False, 0.0))
    output.keep("random", 3)
    assert sorted(output.played["random"]) == [0, 1, 2]
    left = sorted(path.name for kind in ("trajectories", "video") for path in (tmp_path / kind).iterdir())
    assert left == sorted(f"episode-0000{n}.{kind}" for n in range(3) for kind in ("npz", "info.jsonl", "mp4"))
    output.finish("done")
