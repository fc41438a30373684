"""Agents learn what they should, and those that can't, don't: thresholds beside negative controls."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
PROBE = {
    "env": {"id": "probe/identity", "group_size": 16},
    "model": {"hidden": [32]},
    "algorithm": {"name": "ppo", "unroll": 32, "minibatch": 128, "learning_rate": 3e-3, "gamma": 0.9},
    "train": {"steps": 20_000},
}

EVERYWHERE = pytest.mark.parametrize(
    ("seed", "perturbed"), [(1, False), (2, True), pytest.param(3, True, marks=pytest.mark.prove)]
)

pytestmark = pytest.mark.slow


@pytest.fixture
def learned(trained):
    """A function that trains and returns (mean of the last 100 episodes, greedy return, random return)."""

    def learn(source, perturbed=False, **overrides):
        changes = {key.replace("__", "."): value for key, value in overrides.items()}
        summary = trained(source, perturbed=perturbed, **changes).summary
        returns = summary["returns"]
        return returns["mean_100"], returns["greedy"], summary["random_baseline"]["return"]

    return learn


def test_perturbed_weights_make_another_run(trained):
    plain, perturbed = (trained(PROBE, perturbed=case, **{"train.steps": 1024}) for case in (False, True))
    assert plain.summary["parameters_sha256"] != perturbed.summary["parameters_sha256"]


@EVERYWHERE
def test_identity_is_learned(learned, seed, perturbed):
    # 10 steps with one right answer of 4: random gets 2.5, perfect 10
    sampled, greedy, random = learned(PROBE, perturbed, seed=seed)
    assert random == pytest.approx(2.5, abs=1)
    assert sampled > 9
    assert greedy == 10


def test_without_a_learning_rate_identity_is_not_learned(learned):
    sampled, greedy, _ = learned(PROBE, algorithm__learning_rate=1e-9)
    assert sampled < 4
    assert greedy < 8


@EVERYWHERE
def test_a_delayed_reward_is_credited_to_the_first_action(learned, seed, perturbed):
    assert learned(PROBE, perturbed, seed=seed, env__id="probe/delayed-reward", algorithm__gamma=0.99)[0] > 0.9


def test_without_a_future_a_delayed_reward_is_not_learned(learned):
    # gamma = 0 sees only the immediate reward, which is always zero for the action that matters
    sampled, _, random = learned(PROBE, env__id="probe/delayed-reward", algorithm__gamma=0.0)
    assert sampled < random + 0.25


@pytest.mark.parametrize(("memory", "seed", "perturbed"), [("gru", 1, False), ("lstm", 1, False), ("gru", 2, True)])
def test_a_recurrent_agent_remembers_the_cue(learned, memory, seed, perturbed):
    sampled, greedy, _ = learned(CONFIGS / "ppo" / "memory_cue.yaml", perturbed, seed=seed, model__memory=memory)
    assert sampled > 0.9
    assert greedy > 0.95


def test_a_feed_forward_agent_can_not(learned):
    changes = {"model": {"hidden": [32]}, "train.steps": 30_000}
    sampled, greedy, _ = learned(CONFIGS / "ppo" / "memory_cue.yaml", **changes)
    assert abs(sampled) < 0.4  # ±1 with equal chance: the mean of 100 has a deviation of 0.1
    assert abs(greedy) < 0.8  # and that of 20 one of 0.22


@EVERYWHERE
def test_every_part_of_a_multi_discrete_action_is_learned(learned, seed, perturbed):
    sampled, greedy, random = learned(PROBE, perturbed, seed=seed, env__id="probe/multi-identity", train__steps=40_000)
    assert greedy > 0.95 * 10
    assert sampled > 0.85 * 10
    assert random < 0.6 * 10


@EVERYWHERE
def test_a_dict_observation_is_read(learned, seed, perturbed):
    _sampled, greedy, random = learned(PROBE, perturbed, seed=seed, env__id="probe/dict", train__steps=40_000)
    assert greedy > 9
    assert random < 7


@EVERYWHERE
def test_a_continuous_action_is_learned(learned, seed, perturbed):
    # reward -(a - obs)² per step; a policy that ignores the observation loses 1/3 per step on uniform targets
    _sampled, greedy, random = learned(
        PROBE, perturbed, seed=seed, env__id="probe/continuous", algorithm__entropy_coefficient=0.0, train__steps=60_000
    )
    assert greedy > -0.3
    assert random < -4


FAR = {"env.id": "probe/continuous", "env.args": {"low": [-3, 100], "high": [7, 900]}, "train.steps": 60_000}


def test_bounds_far_from_one_are_reached(learned):
    # errors count in halves of the range: who ignores what is shown loses 1/3 per step and component, 6.7 in 10 steps
    _sampled, greedy, random = learned(PROBE, **FAR, **{"algorithm.entropy_coefficient": 0.0})
    assert greedy > -0.6
    assert random < -8


def test_with_clipping_alone_they_are_not(learned):
    # the second component begins at 0 ± 1 and is clipped to 100, so that no change of it changes the reward
    changes = {"model.rescale_actions": False, "algorithm.entropy_coefficient": 0.0}
    assert learned(PROBE, **FAR, **changes)[1] < -5


@EVERYWHERE
def test_cartpole_is_solved_by_ppo(learned, seed, perturbed):
    sampled, greedy, random = learned(CONFIGS / "ppo" / "cartpole.yaml", perturbed, seed=seed)
    assert greedy >= 475
    assert sampled >= 475
    assert random < 60


def test_cartpole_is_solved_by_a2c(learned):
    assert learned(CONFIGS / "a2c" / "cartpole.yaml", perturbed=True)[0] >= 475


def test_cartpole_is_learned_by_vpg(learned):
    assert learned(CONFIGS / "vpg" / "cartpole.yaml", train__steps=150_000)[0] > 200


def test_pendulum_is_swung_up(learned):
    _sampled, greedy, random = learned(CONFIGS / "ppo" / "pendulum.yaml")
    assert random < -900
    assert greedy > -350
