"""What the user asks for, checked: everything that can be refused is refused here, before a folder is made."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from pydantic import Field

from rollmill.config.base import Config
from rollmill.config.load import Overrides, build
from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import opened_group
from rollmill.errors import Refused
from rollmill.launch.process import usable_cores
from rollmill.launch.pulse import watchdog
from rollmill.models.weights import parameters_sha256
from rollmill.numerics import require
from rollmill.persist.newest_weights import Weights
from rollmill.persist.parts import package_version
from rollmill.persist.run_folder import PACKAGES, git_commit, make_output_folder, make_timed_folder
from rollmill.play.named_players import PlayerSpec, baselines_of, parse_player
from rollmill.play.recorder import Recording
from rollmill.play.trained_policy import PolicySource, Subject, open_subject
from rollmill.play.units import Job
from rollmill.play.video import require_av
from rollmill.runtime.config import RuntimeConfig
from rollmill.seeding import generator
from rollmill.settings import ExperimentConfig, load_config

EPISODES = 20  # by default
UNITS = 4  # that the episodes make at least, so that several processes have something to do
STEPS_SIZE = 16  # environments of a group where the number of episodes isn't known beforehand
WORKERS_PER_CORE, LEAST_MOST_WORKERS = 4, 16  # beyond this they only wait for each other, and memory runs out


@dataclass(frozen=True)
class Request:
    """What `rollmill evaluate` is asked for."""

    run: Path | None = None  # or a checkpoint
    overrides: Overrides = ()  # of the environment: env.time_limit=200
    episodes: int | None = None
    steps: int | None = None  # instead of episodes
    greedy: bool | None = None  # None: yes
    workers: int = 1
    out: Path | None = None
    video: int = 0  # how many of the first episodes are filmed
    grid: bool = False  # and put side by side
    dump: bool = False  # trajectories
    info: bool = False  # with the info dicts
    policy: str | None = None  # another player than the run's: random, constant:K, scripted:NAME
    env: str | None = None  # an id or a YAML file, without a run
    baselines: bool = True
    examine: bool = True  # run the environment's own protocol too, where it has one
    seed: int = 0


class _Environment(Config):
    """The sections of a config that are needed without a run."""

    env: EnvConfig
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)


def prepare(request: Request) -> tuple[Job, dict[str, Any]]:
    """The job of a checked request, and the facts for `evaluation.json`.

    The environment is made once and the weights are loaded; then the folder is made.
    """
    subject = None if request.run is None else open_subject(request.run, request.overrides)
    named = subject.config if subject else _environment(str(request.env), request.overrides)
    require(named.runtime.numerics)
    env, env_seconds = named.env, named.runtime.env_seconds
    with watchdog(env_seconds):
        observation_space, space = _try_out(env, request.video > 0)
    weights: Weights | None = None
    if request.policy is not None:
        player = parse_player(request.policy, env, space)
    else:
        assert subject is not None
        weights = subject.read_weights()
        PolicySource(subject.config, observation_space, space).refresh(weights.arrays, request.run or weights.path)
        player = PlayerSpec("policy", "sample" if request.greedy is False else "greedy")
    others = [other for other in baselines_of(env, space) if other != player] if request.baselines else []
    above, name = (subject.run / "evaluations", "") if subject else (Path("runs"), f"evaluate-{player}-{env.id}")
    folder = make_output_folder(request.out) if request.out else make_timed_folder(above, name, "--out")
    recording = Recording(folder, request.video, request.dump, request.info)
    job = Job(
        env=env,
        size=_size(env.group_size, request.episodes),
        seed=request.seed,
        players=(player, *others),
        recording=recording,
        config=subject.config if subject and weights else None,
        weights=weights.arrays if weights else None,
        env_seconds=env_seconds,
    )
    return job, _facts(request, env, subject, weights)


def checked(request: Request) -> Request:
    """The request with its defaults filled in, if its parts go together."""
    for name in ("episodes", "steps", "workers"):
        if (value := getattr(request, name)) is not None and value < 1:
            raise Refused(f"--{name} {value} plays nothing; give at least 1")
    if request.workers > (most := max(LEAST_MOST_WORKERS, WORKERS_PER_CORE * len(usable_cores()))):
        raise Refused(f"--workers {request.workers} is more than this machine carries; give at most {most}")
    for name in ("video", "seed"):
        if (value := getattr(request, name)) < 0:
            raise Refused(f"--{name} {value} is negative; give 0 or more")
    if request.episodes is not None and request.steps is not None:
        raise Refused(f"--episodes {request.episodes} and --steps {request.steps} both say when to end; give one")
    if request.run is None and request.env is None:
        raise Refused("evaluate: nothing to play; name a run or a checkpoint, or give --policy and --env")
    if request.run is not None and request.env is not None:
        raise Refused(f"--env {request.env}: the run has its environment; leave it out, or change it with env.…=")
    if request.env is not None and request.policy is None:
        raise Refused(f"--env {request.env}: there is no player; give --policy random, constant:K or scripted:NAME")
    if request.policy is not None and request.greedy is not None:
        raise Refused(f"--{'greedy' if request.greedy else 'sample'} is for trained policies; --policy is given")
    if request.grid and not request.video:
        raise Refused("--grid puts videos side by side; give --video N too")
    if request.info and not request.dump:
        raise Refused("--info adds to the trajectories; give --dump too")
    if request.video:
        require_av()
    if request.episodes is None and request.steps is None:
        return replace(request, episodes=EPISODES)
    return request


def _environment(named: str, overrides: Overrides) -> ExperimentConfig | _Environment:
    """The environment of a config file, or of an id."""
    if named.endswith((".yaml", ".yml")):
        return load_config(named, overrides).config
    return build({"env": {"id": named}}, overrides, _Environment).config


def _try_out(env: EnvConfig, draws: bool) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Make the environment, take a step, draw it if it is to be drawn; its spaces."""
    if draws:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # many draw with SDL, which looks for a screen and complains
    with opened_group(env, 1, verify=True, pictures=draws) as group:
        one = np.ones(1, np.bool_)
        group.reset(one, np.zeros(1, np.int64))
        group.step(random_actions(group.action_space, 1, generator(0, "check")), one)
        if draws:
            group.render(0)
        return group.observation_space, group.action_space


def _size(group_size: int, episodes: int | None) -> int:
    """Environments of a group; the number of processes has no say in it, or results would depend on it."""
    return min(group_size, STEPS_SIZE if episodes is None else -(-episodes // UNITS))


def _facts(request: Request, env: EnvConfig, subject: Subject | None, weights: Weights | None) -> dict[str, Any]:
    overrides = request.overrides
    return {
        "env": env.id,
        "overrides": list(overrides) if isinstance(overrides, Sequence) else dict(overrides),
        "wanted": {"episodes": request.episodes, "steps": request.steps},
        "seed": request.seed,
        "run": None if subject is None else str(subject.run),
        "env_steps": None if weights is None else weights.env_steps,
        "provenance": {
            "weights_sha256": None if weights is None else parameters_sha256(dict(weights.arrays)),
            "checkpoint": None if weights is None else str(weights.path),
            "git_commit": git_commit(),
            "python": platform.python_version(),
            "versions": {name: package_version(name) for name in PACKAGES},
        },
    }
