"""The oscillator as a group: the contract's own tests over its variants, snapshots, and what the picture shows."""

from __future__ import annotations

import numpy as np
import pytest
import test_group_contract as contract
import test_restore_contract as restoring

from rollmill.doctor.env_check import check_group, random_actions
from rollmill.doctor.restore_trial import EXACT, resume_grade
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group

pytest.importorskip("numba")

SMALL = {"neurons": 37, "window": 20}
CONFIGS = {
    "bvp": EnvConfig(id="oscillator/bvp", args=SMALL, time_limit=30),
    "bursting": EnvConfig(id="oscillator/hindmarsh-rose", args=SMALL, time_limit=30),
    "walk": EnvConfig(
        id="oscillator/bvp", args={**SMALL, "coupling": [0.03, 0.5], "drift": "walk"}, time_limit=30, frame_stack=2
    ),
    "levels and pulses": EnvConfig(
        id="oscillator/bvp", args={**SMALL, "levels": 21, "pulse": "charge_balanced", "rest": 1}, time_limit=30
    ),
}
CLAIMS = [
    contract.test_observations_have_the_shape_and_dtype_of_the_spec,
    contract.test_results_are_raw_float64_rewards_and_bool_flags,
    contract.test_a_masked_reset_touches_only_the_masked_rows,
    contract.test_seed_and_actions_reproduce_an_episode_at_any_index_and_size,
    contract.test_seeds_differ,
    contract.test_the_final_observation_stays_until_the_reset_and_stepping_it_is_an_error,
    contract.test_stepping_before_the_first_reset_is_an_error,
    contract.test_inactive_environments_are_not_stepped,
]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__.removeprefix("test_"))
def test_the_groups_contract_holds(claim, name):
    claim(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("by_snapshot", [True, False], ids=["snapshot", "replay"])
def test_an_episode_continues_elsewhere_bit_for_bit(name, by_snapshot):
    assert restoring.assert_equal_futures(CONFIGS[name], 7, past=17, future=40, by_snapshot=by_snapshot) > 0


def test_all_thousand_neurons_are_the_same_at_any_index_and_size():
    """The loops go row by row, so the numbers of a row can't depend on its neighbours: to the last bit."""
    alone = make_group(EnvConfig(id="oscillator/bvp"), 1)
    among = make_group(EnvConfig(id="oscillator/bvp"), 5)
    alone.reset(np.ones(1, bool), np.array([9]))
    among.reset(np.ones(5, bool), np.array([1, 2, 3, 9, 5]))
    for action in np.random.default_rng(0).uniform(-1, 1, (50, 5, 1)).astype(np.float32):
        alone.step(action[3:4], np.ones(1, bool))
        among.step(action, np.ones(5, bool))
    np.testing.assert_array_equal(alone.state[0], among.state[3])


@pytest.mark.parametrize("name", CONFIGS)
def test_runs_can_be_resumed_exactly(name):
    assert resume_grade(CONFIGS[name]) == EXACT
    assert check_group(CONFIGS[name]).snapshot_size > 0


def test_a_foreign_snapshot_is_refused():
    group, other = make_group(CONFIGS["bvp"], 1), make_group(CONFIGS["bursting"], 1)
    for each in (group, other):
        each.reset(np.ones(1, bool), np.array([1]))
    with pytest.raises(ValueError, match="a snapshot of oscillator/hindmarsh-rose"):
        group.restore(0, other.snapshot(0))
    with pytest.raises(ValueError, match="checksum"):
        group.restore(0, group.snapshot(0)[:-1] + b"\0")


def test_the_picture_shows_what_changes():
    group = make_group(CONFIGS["bvp"], 2, pictures=True)
    group.reset(np.ones(2, bool), np.array([1, 2]))
    first, other = group.render(0).copy(), group.render(1)
    assert (first.shape, first.dtype.name) == ((240, 480, 3), "uint8")
    assert (first != other).any()
    group.step(random_actions(group.action_space, 2, np.random.default_rng(0)), np.ones(2, bool))
    assert (group.render(0) != first).any()
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 4  # curves, neurons, frame, paper
    assert group.frame_rate == 50
