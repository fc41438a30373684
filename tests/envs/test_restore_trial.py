"""The trial of restoring grades an environment by what it really does."""

from __future__ import annotations

from time import monotonic

import pytest

from rollmill.config.user_code import load_object
from rollmill.doctor.restore_trial import resume_grade
from rollmill.envs.config import AtariConfig, EnvConfig

SOURCE = """
import time
import gymnasium as gym
import numpy as np

OPEN = []

class Env(gym.Env):
    made = 0
    observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, kind="sound"):
        self.kind = kind
        if kind == "single" and OPEN: raise OSError("the port is taken")
        Env.made += 1
        self.number = Env.made
        self.resets = self.steps = 0
        OPEN.append(self)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if self.kind == "unseeded" else seed)
        self.resets += 1
        self.hidden, self.t = 0.0, 0
        first = {
            "counts resets": self.resets,
            "shows that it is new": self.resets == 1,
            "unseeded": self.np_random.random(),
        }.get(self.kind, 0)
        return np.array([first], np.float32), {}
    def step(self, action):
        self.t += 1
        self.steps += 1
        self.hidden += self.np_random.random() + action
        if self.kind == "noisy": self.hidden += np.random.default_rng().random()
        if self.kind == "tires" and self.t > 9: self.hidden += self.number
        if self.kind == "slow": time.sleep(0.3)
        if self.kind == "raises" and self.t == 3: raise KeyError("lost")
        reward = self.steps if self.kind == "hides" and self.t > 9 else 0.0
        return np.array([self.hidden], np.float32), float(reward), self.t == 100, False, {}
    def close(self):
        OPEN.remove(self)
        if self.kind == "closes badly": raise OSError("no")

class Forgetful(Env):
    "Its snapshots lack the generator."
    def snapshot(self): return f"{self.hidden},{self.t}".encode()
    def restore(self, data):
        hidden, t = data.split(b",")
        self.hidden, self.t = float(hidden), int(t)

class Liar(Env):
    "Its snapshots are refused."
    def snapshot(self): return b"x"
    def restore(self, data): raise RuntimeError("not today")
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "envs.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("env_class", "kind", "grade"),
    [
        ("Env", "sound", "exact"),
        ("Env", "closes badly", "exact"),
        ("Env", "slow", "exact"),
        ("Env", "unseeded", "approximate: env.id={id} gives another first observation for the same seed"),
        ("Env", "counts resets", "approximate: env.id={id} gives another first observation for the same seed"),
        ("Env", "shows that it is new", "approximate: env.id={id} gives another first observation for the same seed"),
        ("Env", "noisy", "approximate: env.id={id} continues differently for the same seed and actions"),
        ("Env", "tires", "exact from the next episode"),  # the first 9 steps are the same in all instances
        ("Env", "hides", "exact from the next episode"),
        ("Env", "raises", "approximate: env.id={id}: environment 0 raised in step(): KeyError: 'lost'; after "),
        ("Env", "single", "approximate: env.id={id}: can't be made with env.args={{'kind': 'single'}}: OSError: "),
        ("Forgetful", "sound", "exact from the next episode"),
        ("Liar", "sound", "exact"),  # by replay
    ],
)
def test_each_environment_gets_the_grade_it_deserves_in_time_and_is_closed(source, env_class, kind, grade):
    config = EnvConfig(id=f"{source}:{env_class}", args={"kind": kind})
    start = monotonic()
    given = resume_grade(config, seconds=1.0)
    # a slow step is 2 × 0.3 s; beyond the second every stage has its one step: history, play, replay of 2, futures
    assert monotonic() - start < (6.0 if kind == "slow" else 1.5)
    assert given.startswith(grade.format(id=config.id))
    assert given == grade or given.startswith("approximate: ")
    assert load_object(f"{source}:OPEN", "env.id") == []


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="CartPole-v1"),
        EnvConfig(id="CartPole-v1", frame_stack=2, group_size=1),
        EnvConfig(id="Pendulum-v1"),
        EnvConfig(id="probe/tracer"),
        EnvConfig(id="probe/memory-cue"),
        EnvConfig(id="probe/dict", frame_stack=2),
        EnvConfig(id="probe/identity", args={"length": 1}),  # always at the start of an episode
        EnvConfig(id="Pong", atari=AtariConfig(sticky=0.25)),
    ],
    ids=lambda config: config.id,
)
def test_what_we_bring_is_exact(config):
    assert resume_grade(config) == "exact"
