"""A run that is captured between two updates and rebuilt continues to the same parameters."""

from __future__ import annotations

import pytest

from rollmill.doctor.preflight import draw_blueprint
from rollmill.events import Updated
from rollmill.learners.journal import resume_points_from
from rollmill.models.weights import parameters_sha256
from rollmill.persist.checkpoints import Checkpoints
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.settings import load_config

PPO = {"name": "ppo", "unroll": 16, "epochs": 2, "minibatch": 32}
CASES = {
    "cartpole": {"env": {"id": "CartPole-v1", "groups": 2, "group_size": 4}, "algorithm": PPO},
    "gym-replayed": {"env": {"id": "Acrobot-v1", "groups": 2, "group_size": 2, "time_limit": 40}, "algorithm": PPO},
    "memory": {
        "env": {"id": "probe/memory-cue", "groups": 2, "group_size": 4},
        "algorithm": PPO,
        "model": {"memory": "gru", "memory_size": 8},
    },
    "continuous": {"env": {"id": "Pendulum-v1", "groups": 2, "group_size": 2}, "algorithm": PPO},
    "normalised-rewards": {
        "env": {"id": "Hopper-v5", "groups": 2, "group_size": 2},  # MuJoCo: episodes are played again
        "algorithm": {**PPO, "normalise_rewards": True},
    },
    "stacked": {"env": {"id": "CartPole-v1", "groups": 2, "group_size": 2, "frame_stack": 3}, "algorithm": PPO},
    "normalised": {
        "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
        "algorithm": PPO,
        "model": {"normalise_observations": True},
    },
    "rmsprop": {
        "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
        "algorithm": {**PPO, "optimizer": "rmsprop", "anneal_learning_rate": True},
    },
    "vpg": {"env": {"id": "CartPole-v1", "groups": 2, "group_size": 2}, "algorithm": {"name": "vpg"}},
    "pong": {
        "env": {"id": "ALE/Pong-v5", "groups": 2, "group_size": 2, "atari": {"sticky": 0.25}},
        "algorithm": {**PPO, "unroll": 8, "minibatch": 16, "epochs": 1},
    },
}


def play(case, updates, folder=None, content=None, **runtime):
    """Train for `updates` in all; the hash and what a checkpoint would hold (written and read again)."""
    config = load_config({**CASES[case], "train": {"steps": 10**9}, "runtime": runtime}).config
    blueprint = draw_blueprint(config)
    points = {} if content is None else resume_points_from(content.arrays["actors"], blueprint.problem)
    graph = draw_graph(blueprint)
    serial = config.runtime.kind == "serial"
    machine = SerialRuntime(graph, config.runtime) if serial else ProcessRuntime(graph, config.runtime)
    try:
        machine.start(points)
        if content is not None:
            machine.learner.restore(content)
        for event in machine.run():
            if isinstance(event, Updated) and event.progress.updates == updates:
                break
        if folder is not None:
            checkpoints = Checkpoints(folder, config.checkpoint)
            checkpoints.write(machine.learner.capture())
            content = checkpoints.newest().content
        return parameters_sha256(machine.learner.trainer.weights()), content, machine.learner
    finally:
        machine.close()


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_a_capture_gives_the_same_parameters(case, tmp_path):
    whole, _, before = play(case, 7)
    _, content, _ = play(case, 3, tmp_path)
    resumed, _, after = play(case, 7, content=content)
    assert resumed == whole
    assert after.sequencer.scores.state() == before.sequencer.scores.state()
    assert after.progress().env_steps == before.progress().env_steps


@pytest.mark.slow
@pytest.mark.parametrize("roles", ["fused", "central", "split"])
@pytest.mark.parametrize("case", ["cartpole", "gym-replayed", "memory", "vpg"])
def test_a_capture_of_one_runtime_continues_in_another(case, roles, tmp_path):
    whole, _, _ = play(case, 6)
    _, content, _ = play(case, 3, tmp_path, kind="processes", workers=2, roles=roles)
    assert play(case, 6, content=content)[0] == whole
    assert play(case, 6, content=content, kind="processes", workers=1, roles=roles)[0] == whole
