"""Environments that don't speak gymnasium's interface are refused at start-up, in one line."""

from __future__ import annotations

import pytest

from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.errors import Refused

SOURCE = """
import gymnasium as gym
import numpy as np


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.0, False, False, {}", "0.0, False, {}", r"environment 0, step 1: step\(\) gives 4 values, .* has 5"),
        ("np.float32), {}\n", "np.float32)\n", r"environment 0, reset: reset\(\) gives a ndarray, .* has 2"),
        (
            "    action_space = gym.spaces.Discrete(2)\n",
            "",
            "the environment has no action_space; set it to a gymnasium",
        ),
        ("import numpy as np", "import numpy as np, sys; sys.exit(0)", "SystemExit: 0; fix the file"),
    ],
)
def test_a_foreign_interface_is_refused(tmp_path, old, new, message):
    assert old in SOURCE
    (tmp_path / "env.py").write_text(SOURCE.replace(old, new))
    with pytest.raises(Refused, match=message):
        check_group(EnvConfig(id=f"{tmp_path / 'env.py'}:Env"))
