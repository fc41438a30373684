"""Bad input, each through the real command line: exit code 2, one line that says what, which and what to do.

Nothing is written either: the folder in which the command ran holds what it held before.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rollmill = Callable[..., Any]

CONFIG = """\
seed: 1
env:
  id: CartPole-v1
  groups: 1
  group_size: 4
algorithm:
  name: ppo
  unroll: 8
  minibatch: 16
train:
  steps: 64
"""

ENVIRONMENTS = """\
import gymnasium as gym
import numpy as np

class Sick(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape=(4,), dtype="float32", value=0, at=3):
        self.symptom, self.at = np.full(shape, value, dtype), at

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation(), {}

    def step(self, action):
        self.count += 1
        return self.observation(), 0.0, False, False, {}

    def observation(self):
        return self.symptom if self.count == self.at else np.zeros(4, np.float32)

class Exits(Sick):
    def __init__(self):
        raise SystemExit(3)
"""

MODELS = """\
from torch import nn

class Net(nn.Module):
    def __init__(self, observation_space, action_space, inputs=4):
        super().__init__()
        self.linear = nn.Linear(inputs, 8)

    def forward(self, obs, state, reset):
        return self.linear(obs), state

class Exits(Net):
    def __init__(self, observation_space, action_space):
        raise SystemExit(3)

class Flat(Net):
    def forward(self, obs, state, reset):
        return self.linear(obs).flatten(0, 1), state

class Unused(Net):
    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.spare = nn.Linear(4, 8)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: a sound config and the user's own files."""
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(CONFIG)
    Path("envs.py").write_text(ENVIRONMENTS)
    Path("nets.py").write_text(MODELS)
    Path("torn.py").write_text("import gymnasium\n\nclass Torn(gymnasium.Env:\n")
    Path("lacking.py").write_text("import a_module_that_nobody_has\n")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below the folder, with what files hold."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refusal(rollmill: Rollmill, folder: Path, *words: str) -> str:
    """The line with which the command ended, once it is known to be the only one, with code 2 and without traces."""
    before = contents(folder)
    code, out, err = rollmill("train", *words)
    assert (code, out, err.count("\n"), err[-1:]) == (2, "", 1, "\n"), err
    assert contents(folder) == before
    assert err.startswith("rollmill: ")
    return str(err.removeprefix("rollmill: ").rstrip("\n"))


def said_in_order(line: str, *parts: str) -> bool:
    """Whether the parts stand in the line one after the other: usually the setting, its value and the remedy."""
    start = 0
    for part in parts:
        found = line.find(part, start)
        if found < 0:
            return False
        start = found + len(part)
    return True


def test_the_config_that_is_spoilt_here_is_sound(rollmill: Rollmill) -> None:
    assert rollmill("check", "good.yaml") == (0, "ok       good.yaml\n", "")


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (
            "seed: 1\n",
            "seed: 1\nfrobnicate: 2\n",
            ("good.yaml:2", "unknown key 'frobnicate'", "known: algorithm, checkpoint, env"),
        ),
        ("  unroll: 8\n", "  unrol: 8\n", ("good.yaml:8", "unknown key 'algorithm.unrol'", "did you mean 'unroll'?")),
        (
            "  unroll: 8\n",
            "  unroll: 8\n  unroll: 16\n",
            ("good.yaml:9", "duplicate key 'algorithm.unroll'", "first at line 8", "keep one"),
        ),
        ("steps: 64", "steps: many", ("good.yaml:11", "train.steps: 'many'", "not a whole number")),
        ("unroll: 8", "unroll: 8.0", ("good.yaml:8", "algorithm.unroll: 8.0", "not a whole number", "write 8")),
        ("group_size: 4", "group_size: 0", ("good.yaml:5", "env.group_size: 0", "out of range: must be ≥ 1")),
        ("unroll: 8", "gamma: 1.5", ("good.yaml:8", "algorithm.gamma: 1.5", "out of range: must be ≤ 1")),
        # 4 environments × 8 steps
        (
            "minibatch: 16",
            "minibatch: 12",
            ("algorithm.minibatch=12", "the batch of 32", "choose a divisor of 32 = 4 environments × 8 steps"),
        ),
        ("id: CartPole-v1", "id: CartPol-v1", ("env.id=CartPol-v1", "no such environment", "'CartPole-v1'")),
        ("id: CartPole-v1", "id: ALE/Pnog-v5", ("env.id=ALE/Pnog-v5", "no such Atari game", "did you mean 'Pong'?")),
        ("name: ppo", "name: poo", ("good.yaml:7", "algorithm.name: 'poo'", "did you mean 'ppo'?")),
        ("id: CartPole-v1", "\tid: CartPole-v1", ("good.yaml:3", "broken YAML", "indent with spaces, not tabs")),
        ("env:\n", "env: {\n", ("good.yaml:4", "broken YAML at column 9", "of line 2", "expected ',' or '}'")),
    ],
    ids=[
        "unknown key",
        "mistyped key",
        "duplicate key",
        "wrong type",
        "fraction for a count",
        "below the range",
        "above the range",
        "minibatch that doesn't divide",
        "unknown environment",
        "unknown Atari game",
        "unknown algorithm",
        "tab in the YAML",
        "unclosed bracket in the YAML",
    ],
)
def test_a_mistake_in_the_file_is_refused(
    rollmill: Rollmill, folder: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    assert CONFIG.count(old) == 1
    Path("good.yaml").write_text(CONFIG.replace(old, new))
    line = refusal(rollmill, folder, "good.yaml")
    assert said_in_order(line, *parts), line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["algorithm.epoch=3"], ("override", "unknown key 'algorithm.epoch'", "did you mean 'epochs'?")),
        (["seed=3", "seed=4"], ("override 'seed'", "3 and 4", "keep one")),
        (["train.steps"], ("override 'train.steps'", "write key=value")),
        (
            ["runtime.kind=processes", "runtime.workers=2"],
            ("runtime.workers=2", "more than env.groups=1", "set runtime.workers=1 or raise env.groups"),
        ),
        (["model.hidden=[99999999999]"], ("model.torso=auto", "the network can't be built", "make it smaller")),
        # with memory a minibatch is made of whole sequences of 8 steps
        (
            ["model.memory=gru", "algorithm.minibatch=4"],
            ("algorithm.minibatch=4", "sequences of 8 steps", "choose 8 times a divisor of 4"),
        ),
    ],
    ids=[
        "mistyped key",
        "duplicate override",
        "no value",
        "more workers than groups",
        "network without room",
        "minibatch that cuts sequences",
    ],
)
def test_a_mistake_on_the_command_line_is_refused(
    rollmill: Rollmill, folder: Path, words: list[str], parts: tuple[str, ...]
) -> None:
    line = refusal(rollmill, folder, "good.yaml", *words)
    assert said_in_order(line, *parts), line


@pytest.mark.parametrize("package", ["ale_py", "cv2"])
def test_a_missing_extra_is_refused_with_the_command_that_installs_it(
    rollmill: Rollmill, folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what makes an import fail as if it were not installed
    line = refusal(rollmill, folder, "good.yaml", "env.id=ALE/Pong-v5")
    assert said_in_order(line, "env.id=ALE/Pong-v5", "extra 'atari'", 'pip install "rollmill[atari]"'), line


@pytest.mark.parametrize("is_run", [True, False])
def test_a_folder_that_exists_is_not_touched(rollmill: Rollmill, folder: Path, is_run: bool) -> None:
    Path("kept").mkdir()
    Path("kept", "run.json" if is_run else "thesis.tex").write_text("years of work")
    line = refusal(rollmill, folder, "good.yaml", "--run", "kept")
    assert said_in_order(line, "--run kept", "exists", "choose another folder, or --overwrite"), line
    if not is_run:
        line = refusal(rollmill, folder, "good.yaml", "--run", "kept", "--overwrite")
        assert said_in_order(line, "--run kept", "no run folder", "not overwritten", "remove it"), line


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("{shape: [3]}", ("step 3", "shape (3,)", "the space says (4,)")),
        ("{dtype: int64}", ("step 3", "dtype int64", "the space says float32")),
        ("{value: .nan}", ("step 3", "not finite: nan")),
        ("{value: .nan, at: 0}", ("reset", "not finite: nan")),
        ("{value: .inf, at: 1}", ("step 1", "not finite: inf")),
    ],
    ids=[
        "shape",
        "dtype",
        "NaN",
        "NaN at the reset",
        "infinity",
    ],
)
def test_an_environment_that_breaks_its_promise_is_refused(
    rollmill: Rollmill, folder: Path, args: str, parts: tuple[str, ...]
) -> None:
    line = refusal(rollmill, folder, "good.yaml", "env.id=envs.py:Sick", f"env.args={args}")
    remedy = "fix the environment or its observation_space"
    assert said_in_order(line, "env.id=", "envs.py:Sick", "environment 0", *parts, remedy), line


def test_an_environment_whose_constructor_exits_is_refused(rollmill: Rollmill, folder: Path) -> None:
    line = refusal(rollmill, folder, "good.yaml", "env.id=envs.py:Exits")
    assert said_in_order(line, "env.id=", "envs.py:Exits", "SystemExit: 3", "fix env.args"), line


def test_the_same_environment_without_a_symptom_is_sound(rollmill: Rollmill) -> None:
    """The control of the test above."""
    Path("good.yaml").write_text(CONFIG.replace("CartPole-v1", "envs.py:Sick"))
    assert rollmill("check", "good.yaml").code == 0


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        # nets.py, line 9 is the call of the layer that was made for 5 inputs: 2 steps × 4 environments are 8 rows
        ("class: Net, args: {inputs: 5}", ("nets.py", "(8x4 and 5x8)", "nets.py:9", "fix the model")),
        ("class: Flat", ("nets.py", "float32 [8, 8]", "return a tensor [T, B, F]")),
        ("class: Unused", ("nets.py", "'spare.weight', 'spare.bias'", "use them in forward() or remove them")),
        ("class: Exits", ("nets.py", "the constructor raised SystemExit: 3", "fix the model")),
        ("class: Nett", ("nets.py", "no 'Nett'", "did you mean 'Net'?")),
    ],
    ids=[
        "wrong inputs",
        "wrong output",
        "unused parameter",
        "exit in the constructor",
        "unknown class",
    ],
)
def test_a_custom_model_that_does_not_fit_is_refused(
    rollmill: Rollmill, folder: Path, model: str, parts: tuple[str, ...]
) -> None:
    line = refusal(rollmill, folder, "good.yaml", f"model={{file: nets.py, {model}}}")
    assert said_in_order(line, "model.file=", *parts), line


def test_the_same_model_without_a_fault_is_sound(rollmill: Rollmill) -> None:
    """The control of the test above."""
    Path("good.yaml").write_text(CONFIG + "model: {file: nets.py, class: Net}\n")
    assert rollmill("check", "good.yaml").code == 0


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("torn.py", ("torn.py", "line 3", "SyntaxError", "fix the file")),
        ("lacking.py", ("lacking.py", "line 1", "No module named 'a_module_that_nobody_has'", "fix the file")),
        ("gone.py", ("gone.py", "No such file", "fix the path")),
    ],
    ids=["broken", "lacking a module", "gone"],
)
@pytest.mark.parametrize("section", ["env", "model"])
def test_a_file_that_does_not_import_is_refused(
    rollmill: Rollmill, folder: Path, section: str, file: str, parts: tuple[str, ...]
) -> None:
    word = f"env.id={file}:Torn" if section == "env" else f"model={{file: {file}, class: Torn}}"
    line = refusal(rollmill, folder, "good.yaml", word)
    assert said_in_order(line, "env.id=" if section == "env" else "model.file=", *parts), line


def test_a_process_of_its_own_ends_the_same_way(folder: Path) -> None:
    """Nothing that is loaded on the way to the environment's check says a word of its own."""
    before = contents(folder)
    command = [sys.executable, "-m", "rollmill", "train", "good.yaml", "env.id=envs.py:Sick", "env.args={value: .nan}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"rollmill: env.id={folder / 'envs.py'}:Sick: environment 0, step 3: observation is not finite: nan; "
        "fix the environment or its observation_space\n"
    )
    assert contents(folder) == before
