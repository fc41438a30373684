"""Where machine code is kept, and that the shipped configs make environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill.envs.make import make_group
from rollmill.settings import load_config

pytest.importorskip("numba")

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "oscillator").glob("*.yaml"))

STEP_ONCE = """
import numpy as np
from rollmill.envs.single import make_env
make_env("oscillator/bvp", neurons=8).reset(seed=1)
"""


@pytest.mark.slow
def test_machine_code_is_kept_below_the_temporary_folder_and_nowhere_else(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path / "home")}
    for folder in ("tmp", "home"):
        (tmp_path / folder).mkdir()
    subprocess.run([sys.executable, "-c", STEP_ONCE], env=environment, check=True)
    assert list((tmp_path / "tmp").rglob("*.nbc"))
    assert not list((tmp_path / "home").rglob("*"))
    assert not list(Path(rollmill.__file__).parent.rglob("*.nb[ic]"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_makes_its_environment(path):
    env = load_config(path).config.env
    args = {key: value for key, value in env.args.items() if key != "frozen"}  # a run that the user makes first
    group = make_group(env.model_copy(update={"args": args}), 1)
    assert group.time_limit == env.time_limit
