"""The Unity adapter against a program that speaks ML-Agents' real protocol: what agents see, do and get."""

from __future__ import annotations

import numpy as np
import pytest
from unity_server import HEIGHT, WIDTH, write_build
from unity_server import image as image_bytes

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import known_environments, make_group
from rollmill.errors import Refused

pytest.importorskip("mlagents_envs", reason="needs the extra 'unity'")

ONE = np.ones(1, bool)


def image(t, episode):
    return np.frombuffer(image_bytes(t, episode), np.uint8).reshape(HEIGHT, WIDTH, 3)


@pytest.fixture
def make(tmp_path):
    """Groups of a kind of build, closed at the end."""
    groups = []

    def make_one(kind, size=1, time_limit=None, **args):
        build = write_build(tmp_path, kind)
        args = {"build": str(build), "timeout": 20.0, "seed": 1, **args}  # with a seed the first build isn't restarted
        config = EnvConfig(id="unity/build", args=args, time_limit=time_limit)
        groups.append(make_group(config, size))
        return groups[-1]

    yield make_one
    for group in groups:
        group.close()


def test_continuous_actions_and_a_vector_with_the_true_final_observation(make):
    group = make("vector", behaviour="Ball")  # Unity calls it Ball?team=0
    assert group.action_space.shape == (2,)
    group.reset(ONE, np.array([3]))
    start = group.obs[0, 0]
    episode = group.obs[0, 2]
    assert group.obs[0].tolist() == [start, 0, episode]
    for t in range(1, 5):
        reward, terminated, truncated = group.step(np.array([[0.5, t / 8]], np.float32), ONE)
        assert (reward[0], terminated[0], truncated[0]) == (0.5 + t / 8, False, False)
        assert group.obs[0].tolist() == [start, t, episode]
    # outside the bounds: 3 is clipped to 1
    reward, terminated, truncated = group.step(np.array([[3.0, 0.0]], np.float32), ONE)
    assert (reward[0], terminated[0], truncated[0]) == (1.0, True, False)
    # the same message also held the first observation of the next episode, (another start, 0, episode + 1)
    assert group.obs[0].tolist() == [start, 5, episode]
    group.reset(ONE, np.array([4]))
    assert group.obs[0, 1] == 0
    assert group.obs[0, 0] != start


def test_an_interrupted_episode_is_truncated_and_parameters_reach_the_scene(make):
    group = make("vector", parameters={"length": 2, "interrupted": 1})
    group.reset(ONE, np.array([0]))
    action = np.zeros((1, 2), np.float32)
    assert not group.step(action, ONE).truncated[0]
    result = group.step(action, ONE)
    assert (result.terminated[0], result.truncated[0]) == (False, True)
    assert group.obs[0, 1] == 2


def test_a_time_limit_of_ours_truncates(make):
    group = make("vector", time_limit=3)
    group.reset(ONE, np.array([0]))
    flags = [group.step(np.zeros((1, 2), np.float32), ONE).truncated[0] for _ in range(3)]
    assert flags == [False, False, True]


def test_a_camera_gives_the_very_bytes_and_a_picture(make):
    group = make("visual", decisions_per_second=5.0)
    assert group.observation_space.shape == (HEIGHT, WIDTH, 3)
    assert group.action_space.nvec.tolist() == [3, 2]
    assert group.frame_rate == 5.0
    group.reset(ONE, np.array([0]))
    np.testing.assert_array_equal(group.obs[0], image(0, 1))  # episode 0 was begun to see what the agent looks like
    assert group.step(np.array([[2, 1]]), ONE).reward[0] == 3.0
    np.testing.assert_array_equal(group.obs[0], image(1, 1))
    np.testing.assert_array_equal(group.render(0), image(1, 1))
    assert group.info(0) == {"forbidden": [[False, False, False], [False, True]]}


def test_several_sensors_make_a_dict(make):
    group = make("mixed", visual="floats")
    assert list(group.observation_space.spaces) == ["Camera", "Vector_Sensor"]
    group.reset(ONE, np.array([0]))
    group.step(np.array([[1, 0]]), ONE)
    np.testing.assert_array_equal(group.obs["Camera"][0], (image(1, 1) / 255.0).astype(np.float32))
    assert group.obs["Vector_Sensor"][0, 1:].tolist() == [1, 1]


def test_uncompressed_pictures_become_bytes(make):
    group = make("mixed")
    group.reset(ONE, np.array([0]))
    np.testing.assert_array_equal(group.obs["Camera"][0], image(0, 1))


def test_a_scene_may_need_several_exchanges_until_its_agent_asks(make):
    group = make("lazy")
    group.reset(ONE, np.array([0]))
    action = np.zeros((1, 2), np.float32)
    shown = [group.obs[0, 1]]
    for _ in range(4):
        group.step(action, ONE)
        shown.append(group.obs[0, 1])
    assert shown == [0, 1, 2, 3, 4]


def test_rows_are_builds_of_their_own_started_with_the_seed_of_their_first_episode(make):
    group = make("vector", size=3, seed=None)
    group.reset(np.ones(3, bool), np.array([5, 6, 5]))
    starts = group.obs[:, 0].tolist()
    assert starts[0] == starts[2] != starts[1]
    group.step(np.zeros((3, 2), np.float32), np.array([False, True, False]))
    assert group.obs[:, 1].tolist() == [0, 1, 0]


def test_a_parameter_can_carry_the_seed_of_every_episode(make):
    group = make("vector", seed_parameter="seed")
    starts = []
    for seed in (5, 6, 5):
        group.reset(ONE, np.array([seed]))
        starts.append(group.obs[0, 0].item())
    assert starts[0] == starts[2] != starts[1]


@pytest.mark.parametrize(
    ("kind", "args", "told"),
    [
        (
            "vector",
            {"behaviour": "Bal"},
            "env.args.behaviour=Bal: the build has no such behaviour; did you mean 'Ball'?",
        ),
        ("hybrid", {}, "2 continuous and 1 discrete actions at once can't be trained"),
        ("spectator", {}, "takes no actions"),
        ("crowd", {}, "env.args.behaviour=Ball?team=0: 2 agents ask for decisions at once; keep one in the scene"),
        # the last pixel is 59: 59 / 10 = 5.9
        (
            "mixed",
            {"parameters": {"brightness": 10}},
            "env.args.visual=bytes: a visual sensor gives values from 0 to 5.9",
        ),
        ("deaf", {"timeout": 0.7}, "gave no answer within 0.7 seconds (env.args.timeout=0.7); see whether it starts"),
        ("mute", {"timeout": 1.5}, "gave no answer within 1.5 seconds (env.args.timeout=1.5)"),
        ("crash", {}, "before it connected, the build ended with exit code 7; set env.args.log_folder"),
        ("newer", {}, "communication API version is not compatible"),
        ("vector", {"timeot": 3}, "did you mean 'timeout'?"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(make, kind, args, told):
    with pytest.raises(Refused) as refusal:
        make(kind, **args)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_builds_that_are_not_there_are_refused_with_the_nearest_name(tmp_path):
    def refusal(path):
        with pytest.raises(Refused) as refused:
            make_group(EnvConfig(id="unity/build", args={"build": str(path)}), 1)
        return str(refused.value)

    assert "a folder must hold one build (*.x86_64), but there is: none" in refusal(tmp_path)
    assert "its folder holds no build" in refusal(tmp_path / "Scene")
    build = write_build(tmp_path, "vector")
    assert "did you mean 'Scene.x86_64'?" in refusal(tmp_path / "Sceen.x86_64")
    assert "nor its folder" in refusal(tmp_path / "builds" / "Scene")
    build.chmod(0o644)
    for path in (build, tmp_path, tmp_path / "Scene"):
        assert "not executable; chmod +x Scene.x86_64" in refusal(path)


def test_the_family_is_listed():
    assert "unity/build" in known_environments()
