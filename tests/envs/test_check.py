"""The check at start-up finds what is wrong with an environment and says where."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill.doctor.env_check import check_group, random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvironmentFailed
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.verify import observation_fault
from rollmill.errors import Refused

SICK = """
import gymnasium as gym
import numpy as np

class Sick(gym.Env):
    def __init__(self, symptom="", at=7):
        part = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.observation_space = gym.spaces.Dict({"x": part, "n": gym.spaces.Box(0, 255, (2,), np.uint8)})
        self.action_space = gym.spaces.Discrete(2)
        self.symptom, self.at, self.count = symptom, at, 0
    def reset(self, *, seed=None, options=None):
        return self.result()[0], {}
    def step(self, action):
        self.count += 1
        return self.result()
    def result(self):
        obs = {"x": np.zeros(4, np.float32), "n": np.zeros(2, np.uint8)}
        reward, terminated, truncated = 0.0, False, False
        if self.count == self.at:
            if self.symptom == "raises": raise KeyError("lost")
            obs, reward, terminated, truncated = eval(self.symptom, {"np": np, "obs": obs})
        return obs, reward, terminated, truncated, {}
"""


@pytest.fixture
def sick(tmp_path):
    path = tmp_path / "sick.py"
    path.write_text(SICK)
    return f"{path}:Sick"


@pytest.mark.parametrize(
    ("symptom", "complaint"),
    [
        (
            "({**obs, 'x': np.zeros(3, np.float32)}, 0., False, False)",
            "observation 'x' has shape (3,), the space says (4,)",
        ),
        (
            "({**obs, 'x': np.zeros(4, np.int64)}, 0., False, False)",
            "observation 'x' has dtype int64, the space says float32",
        ),
        (
            "({**obs, 'x': np.array([None] * 4)}, 0., False, False)",
            "observation 'x' has dtype object, the space says float32",
        ),
        ("({**obs, 'x': np.array([0, np.nan, 0, 0])}, 0., False, False)", "observation 'x' is not finite: nan"),
        ("({**obs, 'x': np.array([0, 0, -np.inf, 0])}, 0., False, False)", "observation 'x' is not finite: -inf"),
        ("({**obs, 'n': np.array([0, 256])}, 0., False, False)", "observation 'n' is out of bounds: 256"),
        ("({**obs, 'n': np.zeros(2)}, 0., False, False)", "observation 'n' has dtype float64, the space says uint8"),
        ("({'x': obs['x']}, 0., False, False)", "observation has keys ['x'], the space says ['n', 'x']"),
        ("(obs['x'], 0., False, False)", "observation is a ndarray, the space says keys ['n', 'x']"),
        ("(obs, np.nan, False, False)", "reward is not finite: nan"),
        ("(obs, None, False, False)", "reward is None, not a number"),
        ("(obs, np.zeros(1), False, False)", "reward is array([0.]), not a number"),
        ("(obs, 0., 'no', False)", "terminated is 'no', not a bool"),
        ("(obs, 0., False, None)", "truncated is None, not a bool"),
    ],
)
def test_a_broken_promise_is_refused_with_environment_step_and_remedy(sick, symptom, complaint):
    with pytest.raises(Refused) as refusal:
        check_group(EnvConfig(id=sick, args={"symptom": symptom}))
    remedy = "fix the environment or its observation_space"
    assert str(refusal.value) == f"env.id={sick}: environment 0, step 7: {complaint}; {remedy}"


def test_a_fault_in_the_first_observation_is_found_at_the_reset(sick):
    symptom = "({**obs, 'x': np.full(4, np.nan)}, 0., False, False)"
    with pytest.raises(Refused, match="environment 0, reset: observation 'x' is not finite"):
        check_group(EnvConfig(id=sick, args={"symptom": symptom, "at": 0}))


def test_another_precision_is_cast_and_not_refused(sick):
    check_group(EnvConfig(id=sick, args={"symptom": "({**obs, 'x': np.zeros(4)}, np.float32(1), np.bool_(0), False)"}))


def test_a_sound_environment_gives_its_spaces(sick):
    found = check_group(EnvConfig(id=sick, frame_stack=2, args={"at": -1}))
    assert found.observation_space["x"].shape == (8,)
    assert found.action_space == gym.spaces.Discrete(2)
    assert found.frame_skip == 1
    assert check_group(EnvConfig(id="Pong", group_size=1)).frame_skip == 4


def test_what_the_environment_raises_is_reported_with_its_name_index_and_call(sick):
    with pytest.raises(EnvironmentFailed) as failure:
        check_group(EnvConfig(id=sick, args={"symptom": "raises"}))
    assert str(failure.value) == f"env.id={sick}: environment 0 raised in step(): KeyError: 'lost'"
    assert isinstance(failure.value.__cause__, KeyError)
    with pytest.raises(EnvironmentFailed, match=r"environment 0 raised in reset\(\)"):
        check_group(EnvConfig(id=sick, args={"symptom": "raises", "at": 0}))


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (gym.spaces.Discrete(3, start=2), 4, 5),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([2, 0])),
        (gym.spaces.MultiBinary(2), np.array([0, 1], np.int8), np.array([0, 2], np.int8)),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)]), (1,), (2,)),
    ],
)
def test_integer_observations_must_lie_in_their_bounds(space, good, bad):
    assert observation_fault(space, good) is None
    assert "is out of bounds" in observation_fault(space, bad)


def test_random_actions_cover_the_space_in_the_agents_dtype():
    draw = np.random.default_rng(0)
    assert set(random_actions(gym.spaces.Discrete(3, start=5), 99, draw)) == {0, 1, 2}  # the agent counts from 0
    multi = random_actions(gym.spaces.MultiDiscrete([2, 4]), 99, draw)
    assert (multi.shape, multi.dtype, multi.max(axis=0).tolist()) == ((99, 2), np.int64, [1, 3])
    box = random_actions(gym.spaces.Box(np.array([0, 5]), np.array([1, 6]), dtype=np.float64), 99, draw)
    assert box.dtype == np.float32
    assert (box >= [0, 5]).all()
    assert (box <= [1, 6]).all()
    assert box[:, 1].max() > 5.5
    assert np.isfinite(random_actions(gym.spaces.Box(-np.inf, np.inf, (2,)), 9, draw)).all()


class Recorder(gym.Env):
    """Keeps the actions it was given."""

    observation_space = gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Box(0, 1, (2,), np.float64)])

    def __init__(self, action_space):
        self.action_space, self.got = action_space, []

    def reset(self, *, seed=None, options=None):
        return (seed, np.array([0.25, 0.5])), {}

    def step(self, action):
        self.got.append(action)
        return (len(self.got), np.zeros(2)), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "given", "received"),
    [
        (gym.spaces.Discrete(2, start=3), np.array([1]), 4),
        (gym.spaces.Box(-1, 1, (2,), np.float64), np.array([[0.5, 7]], np.float32), [0.5, 1]),
        (gym.spaces.MultiDiscrete([3, 3]), np.array([[1, 2]]), [1, 2]),
    ],
)
def test_actions_reach_the_environment_in_its_own_terms(space, given, received):
    env = Recorder(space)
    group = GymGroup("recorder", lambda: env, 1)
    group.reset(np.ones(1, bool), np.array([8]))
    assert (group.obs["0"].tolist(), group.obs["1"].tolist()) == ([8], [[0.25, 0.5]])  # a tuple is read as a dict
    assert group.obs["1"].dtype == np.float32
    group.step(given, np.ones(1, bool))
    given[...] = 0  # what the environment keeps is its own
    assert np.asarray(env.got[0]).tolist() == received
    assert space.contains(env.got[0])
