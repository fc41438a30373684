"""The one door: every form of id leads to its environment, and every wrong one to a line that says what to do."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import known_environments, make_group
from rollmill.errors import Refused
from rollmill.settings import load_config
from rollmill_envs.cartpole import CartPoleGroup

LINE = """
import gymnasium as gym
import numpy as np

class Line(gym.Env):
    def __init__(self, n=2):
        self.observation_space = gym.spaces.Box(0, 1, (n,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}
    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

def make_line(**args):
    return Line(**args)

def make_nothing():
    return "nothing"

class NoEnv: pass
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "line.py").write_text(LINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(env_id, **keys):
    with pytest.raises(Refused) as refused:
        make_group(EnvConfig(id=env_id, **keys), 1)
    message = str(refused.value)
    assert "\n" not in message
    return message


def steps_until_truncation(config):
    group = make_group(config, 1)
    on = np.ones(1, bool)
    group.reset(on, np.array([0]))
    for step in range(1, 1000):
        result = group.step(np.zeros((1, *group.action_space.shape), np.int64), on)
        assert not result.terminated[0]
        if result.truncated[0]:
            return step
    return None


def test_cartpole_is_native_unless_arguments_change_it():
    assert isinstance(make_group(EnvConfig(id="CartPole-v1"), 1), CartPoleGroup)
    assert isinstance(make_group(EnvConfig(id="CartPole-v1", args={"sutton_barto_reward": True}), 1), GymGroup)


def test_the_group_size_is_the_configs_by_default():
    assert make_group(EnvConfig(id="CartPole-v1", group_size=5)).size == 5
    assert make_group(EnvConfig(id="CartPole-v1", group_size=5), 2).size == 2


@pytest.mark.parametrize("name", ["Line", "make_line"])
def test_a_class_or_function_of_a_file_makes_the_environment_with_arguments(folder, name):
    group = make_group(EnvConfig(id=f"line.py:{name}", args={"n": 5}), 2)
    assert group.observation_spec.shape == (5,)
    group.reset(np.ones(2, bool), np.arange(2))
    assert group.step(np.zeros(2, np.int64), np.ones(2, bool)).reward.tolist() == [1, 1]


def test_a_dotted_path_makes_the_environment():
    assert make_group(EnvConfig(id="rollmill_envs.probe.probes:Identity", args={"n": 7}), 1).action_space.n == 7


@pytest.mark.parametrize(
    ("env_id", "limit", "steps"),
    [
        ("Pendulum-v1", None, 200),  # the registered limit
        ("Pendulum-v1", 7, 7),
        ("Pendulum-v1", 300, 300),  # replaced, not only shortened
        ("line.py:Line", None, None),
        ("line.py:Line", 9, 9),
    ],
)
def test_the_time_limit_replaces_the_registered_one(folder, env_id, limit, steps):
    assert steps_until_truncation(EnvConfig(id=env_id, time_limit=limit)) == steps


@pytest.mark.parametrize("args", [{}, {"sutton_barto_reward": False}])
def test_the_time_limit_holds_for_native_and_gymnasium_cartpole(args):
    assert steps_until_truncation(EnvConfig(id="CartPole-v1", time_limit=4, args=args)) == 4


@pytest.mark.parametrize(
    ("env_id", "complaint"),
    [
        ("CartPol-v1", "env.id=CartPol-v1: no such environment; did you mean 'CartPole-v1'?"),
        ("CartPole-v7", "env.id=CartPole-v7: no such environment; did you mean 'CartPole-v1'?"),
        ("xqzw", "env.id=xqzw: no such environment; `rollmill list envs` shows what is known"),
        ("probe/tracr", "env.id=probe/tracr: no such environment; did you mean 'probe/tracer'?"),
        ("LunarLander-v2", "Please use `LunarLander-v3` instead."),
        ("nowhere:Foo-v0", "env.id=nowhere:Foo-v0 needs what is not installed: No module named 'nowhere'"),
        ("nowhere.deep:Foo", "env.id=nowhere.deep:Foo: there is no module 'nowhere'; install it, or name a file"),
        ("gone.py:Foo", "gone.py: No such file or directory; fix the path"),
        ("line.py:Lin", "env.id=line.py:Lin: line.py has no 'Lin'; did you mean 'Line'?"),
        ("line.py:NoEnv", "NoEnv is neither a gymnasium.Env nor a function that returns one"),
        ("line.py:number", "number is neither a gymnasium.Env nor a function that returns one"),
        ("line.py:make_nothing", "returned a str; it must return a gymnasium.Env"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_wrong_id_is_refused_with_the_remedy(folder, env_id, complaint):
    assert complaint in refusal(env_id)


def test_a_missing_dependency_of_a_known_id_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    assert 'pip install "gymnasium[box2d]"' in refusal("LunarLander-v3")


@pytest.mark.parametrize("env_id", ["line.py:Line", "Pendulum-v1"])
def test_wrong_arguments_are_refused(folder, env_id):
    message = refusal(env_id, args={"colour": 1})
    assert "can't be made with env.args={'colour': 1}: TypeError" in message
    assert message.endswith("fix env.args")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\ndef f(:\n", "broken.py, line 2: SyntaxError: "),
        ("import os\n\nimport nowhere_at_all\n", "broken.py, line 3: ModuleNotFoundError: No module named"),
        ("import json\njson.loads('')\n", "broken.py, line 2: JSONDecodeError: "),
    ],
)
def test_a_file_that_does_not_import_is_refused_with_its_line(folder, source, complaint):
    (folder / "broken.py").write_text(source)
    before = {name for name in sys.modules if name.startswith("_rollmill_")}  # other tests load files too
    assert complaint in refusal("broken.py:Env")
    assert {name for name in sys.modules if name.startswith("_rollmill_")} == before


def test_a_file_is_loaded_once_until_it_is_edited_and_shadows_nothing(folder):
    from rollmill.config.user_code import load_object

    (folder / "json.py").write_text("class Mine: pass\n")
    import json

    first = load_object("json.py:Mine", "env.id")
    assert load_object("json.py:Mine", "env.id") is first
    assert sys.modules["json"] is json
    (folder / "json.py").write_text("class Mine: edited = True\n")
    assert load_object("json.py:Mine", "env.id").edited


def test_the_list_of_environments_holds_every_kind():
    known = known_environments()
    assert {"probe/tracer", "ALE/Pong-v5", "ALE/MsPacman-v5", "CartPole-v1", "Pendulum-v1"} <= set(known)
    assert len(known) == len(set(known))
    assert not {"HalfCheetah-v2", "GymV21Environment-v0"} & set(known)  # stubs that only raise


def test_the_list_of_environments_does_not_depend_on_what_was_imported():
    code = "{}from rollmill.envs.make import known_environments; print(known_environments())"
    outputs = [
        subprocess.run([sys.executable, "-c", code.format(first)], capture_output=True, check=True).stdout
        for first in ("", "import ale_py; ")
    ]
    assert outputs[0] == outputs[1]


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = (
        "import sys, rollmill.doctor.env_check; from rollmill.envs.config import EnvConfig;"
        "assert EnvConfig(id='Pong').is_atari; assert not {'ale_py', 'cv2', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("env_id", "key"), [("doom/doom2", "game"), ("oscillator/bvp", "frozen"), ("unity/build", "build")]
)
def test_files_of_an_environment_are_found_next_to_the_config_from_anywhere(tmp_path, monkeypatch, env_id, key):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "thing").touch()
    text = f"env: {{id: {env_id}, args: {{{key}: thing}}}}\nalgorithm: {{name: ppo}}\ntrain: {{steps: 1}}\n"
    (folder / "config.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/config.yaml").config.env.args[key] == str(folder / "thing")
