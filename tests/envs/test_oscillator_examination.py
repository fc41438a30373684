"""The three phases, S, the classical controllers, and a second agent on top of a frozen one."""

from __future__ import annotations

import numpy as np
import pytest

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import examine_of, scripts_of
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill_envs.oscillator import controllers
from rollmill_envs.oscillator.examine import FORMS, Course, examine, measure

pytest.importorskip("numba")

BVP = EnvConfig(id="oscillator/bvp")


def test_suppression_is_measured_in_the_settled_part_of_each_phase():
    """Deviations 2 and 0.5 after the first third: S = 4; what happens before settling must not count."""
    beat = np.tile([1.0, -1.0], 15)
    wild = np.full(10, 50.0)
    free, controlled, released = (np.concatenate([wild, size * beat[:20]]) for size in (2.0, 0.5, 3.0))
    field = np.concatenate([free, controlled, released])[:, None]
    action = np.concatenate([np.zeros(30), np.full(10, 9.0), np.tile([0.25, -0.25], 10), np.zeros(30)])[:, None]
    found = measure(Course(field, action, (30, 30, 30), 0.2))
    assert found["S"] == pytest.approx(4)
    assert found["S_of_each"] == pytest.approx([4])
    assert found["std_X"] == pytest.approx({"free": 2, "controlled": 0.5, "released": 3})
    assert found["mean_abs_action"] == pytest.approx(0.25)


def test_the_phases_have_the_published_lengths():
    assert FORMS == {"short": (7_500, 7_500, 5_000), "long": (25_000, 25_000, 5_000)}


def examined(script, tmp_path, **args):
    config = EnvConfig(id="oscillator/bvp", args={"ensembles": 2, **args})
    return examine(config, 1, lambda size: scripts_of(config)[script](config, size), tmp_path)


@pytest.mark.slow
def test_mean_field_feedback_reaches_the_published_suppression(tmp_path):
    """ENVIRONMENTS: gain 0.02 gives S ≈ 50 with a thousand neurons; released, the ensemble beats again."""
    found = examined("mean-field", tmp_path)
    assert found["S"] == pytest.approx(50, abs=8)
    assert found["mean_abs_action"] < 0.001
    assert found["std_X"]["free"] == pytest.approx(1.07, abs=0.05)
    assert found["std_X"]["released"] > 5 * found["std_X"]["controlled"]
    assert found["mean_X"]["controlled"] == pytest.approx(-0.27, abs=0.02)
    assert (tmp_path / found["picture"]).stat().st_size > 10_000

    others = found["controllers"]
    assert others["mean-field"]["S_of_each"] == found["S_of_each"]  # the same ensembles
    assert others["delayed"]["S"] > 30  # without seeing x
    assert others["zero"]["S"] == pytest.approx(1, abs=0.1)
    assert found["S beside"].startswith(f"mean-field {found['S']:.1f} (|a| 0.000")


def test_no_action_is_taken_in_the_free_and_the_released_phase(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMS, "short", (300, 300, 300))
    calls = []

    def make_player(size):
        def player(group, reset):
            calls.append((group.info(0)["action"], reset.copy()))
            return np.full((size, 1), 0.5, np.float32)

        return player

    assert examine_of(BVP) is examine
    found = examine(EnvConfig(id="oscillator/bvp", args={"neurons": 20, "ensembles": 3}), 1, make_player, tmp_path)
    assert len(calls) == 300  # and never by the free, the released, or another controller's course
    assert calls[0][0] == 0.0
    assert [bool(reset.all()) for _, reset in calls] == [True] + [False] * 299
    assert found["mean_abs_action"] == 0.5
    assert len(found["S_of_each"]) == 3


def test_the_rules_of_the_controllers_by_hand():
    """X of the window 1, 2, 6: mean 3, so a = −0.1·(6 − 3); Y of it 5, 7, 4: a = 0.1·(7 − 4) with delay 1."""
    group = make_group(EnvConfig(id="oscillator/bvp", args={"neurons": 4, "window": 3}), 1)
    group.fields[0] = [[1, 2, 6], [5, 7, 4]]
    nobody = np.zeros(1, bool)
    assert controllers.mean_field(0.1)(group, nobody)[0, 0] == pytest.approx(-0.3)
    assert controllers.delayed(0.1, 1)(group, nobody)[0, 0] == pytest.approx(0.3)
    assert controllers.zero()(group, nobody)[0, 0] == 0


def test_controllers_choose_the_nearest_level():
    group = make_group(EnvConfig(id="oscillator/bvp", args={"neurons": 4, "window": 3, "levels": 21}), 1)
    group.fields[0] = [[1, 2, 6], [5, 7, 4]]
    assert controllers.mean_field(0.1)(group, np.zeros(1, bool)).tolist() == [7]  # −0.3 = −1 + 7 · 0.1


SMALL = {"neurons": 20, "window": 12}


def hardly_trained(folder, env_args=SMALL, **model):
    """A run of an agent on a small ensemble; its actions are what they are."""
    config = {
        "env": {"id": "oscillator/bvp", "group_size": 4, "args": env_args, "time_limit": 50},
        "model": model,
        "algorithm": {"name": "ppo", "unroll": 16, "epochs": 2, "minibatch": 32, "learning_rate": 0.05},
        "train": {"steps": 128},
        "observe": {"console": "none", "curve": False, "final_episodes": 0, "baseline_seconds": 0.1},
    }
    return rollmill.train(config, run=folder).path


@pytest.fixture(scope="module")
def first_agent(tmp_path_factory):
    folder = hardly_trained(tmp_path_factory.mktemp("first") / "run")
    return folder, rollmill.load(folder)


def on_top(folder, size, **args):
    args = {**SMALL, "frozen": str(folder), **args}
    group = make_group(EnvConfig(id="oscillator/bvp", args=args), size)
    group.reset(np.ones(size, bool), np.arange(size))
    return group


@pytest.mark.slow
def test_a_frozen_agents_action_is_added_from_the_same_observation(first_agent):
    folder, policy = first_agent
    group = on_top(folder, 3)
    wanted = policy(group.obs)[:, 0]
    assert np.abs(wanted).max() > 1e-4
    result = group.step(np.full((3, 1), 0.125, np.float32), np.ones(3, bool))
    for k in range(3):
        said = group.info(k)
        assert said["frozen_action"] == pytest.approx(wanted[k], abs=1e-6)
        assert said["action"] == pytest.approx(np.clip(wanted[k] + 0.125, -1, 1), abs=1e-6)
    deviation = (group.fields[:, 0, -1] - group.fields[:, 0].mean(-1)) ** 2
    np.testing.assert_allclose(result.reward, -deviation - 2 * np.abs(group.amplitude), atol=1e-9)
    group.is_muted = True  # silences both
    group.step(np.full((3, 1), 0.125, np.float32), np.ones(3, bool))
    assert group.info(0)["action"] == group.info(0)["frozen_action"] == 0


@pytest.mark.slow
def test_on_top_of_a_frozen_agent_episodes_depend_on_nothing_but_seed_and_actions(first_agent):
    folder, _ = first_agent
    few, many = on_top(folder, 2), on_top(folder, 21)
    for _ in range(20):
        few.step(np.full((2, 1), 0.01, np.float32), np.ones(2, bool))
        many.step(np.full((21, 1), 0.01, np.float32), np.ones(21, bool))
    np.testing.assert_array_equal(few.state, many.state[:2])


@pytest.mark.slow
def test_a_frozen_agent_that_sees_something_else_is_refused(first_agent):
    with pytest.raises(Refused, match="freeze a run with the same window"):
        on_top(first_agent[0], 1, window=13)


@pytest.mark.slow
def test_a_frozen_agent_with_memory_is_refused(tmp_path):
    folder = hardly_trained(tmp_path / "run", memory="gru", memory_size=8)
    with pytest.raises(Refused, match="has memory; freeze a feed-forward one"):
        on_top(folder, 1)


def frozen_with_levels(tmp_path, **args):
    """A run whose agent chooses among levels within ± 0.5."""
    args = {**SMALL, "levels": 5, "action_limit": 0.5, **args}
    return hardly_trained(tmp_path / "run", env_args=args)


@pytest.mark.slow
def test_the_levels_of_a_frozen_agent_are_within_its_own_limits(tmp_path):
    folder = frozen_with_levels(tmp_path)
    group = on_top(folder, 3)  # within ± 1
    chosen = rollmill.load(folder)(group.obs)
    group.step(np.zeros((3, 1), np.float32), np.ones(3, bool))
    assert [group.info(k)["frozen_action"] for k in range(3)] == pytest.approx(-0.5 + 0.25 * chosen)


@pytest.mark.slow
def test_a_frozen_agent_that_saw_another_variable_is_refused(tmp_path):
    folder = frozen_with_levels(tmp_path, observe="x")
    with pytest.raises(Refused, match="was trained on the mean of x in oscillator/bvp; freeze one that saw the same"):
        on_top(folder, 1)


@pytest.mark.slow
def test_a_row_that_is_not_stepped_keeps_what_was_said_of_its_last_step(first_agent):
    group = on_top(first_agent[0], 2)
    action = np.full((2, 1), 0.125, np.float32)
    group.step(action, np.ones(2, bool))
    said, kept = group.info(1), group.snapshot(1)
    assert said["frozen_action"] != 0
    group.is_muted = True  # so that the other row's parts change
    group.step(action, np.array([True, False]))
    assert group.info(1) == said
    assert group.snapshot(1) == kept


@pytest.mark.parametrize("levels", [None, 21])
def test_to_an_agent_that_sees_its_last_action_nothing_was_done_before_it_controls(tmp_path, monkeypatch, levels):
    monkeypatch.setitem(FORMS, "short", (20, 20, 20))
    seen = []

    def make_player(size):
        def player(group, reset):
            seen.append(group.obs["previous_action"].copy())
            return np.zeros((size, 1), np.float32) if levels is None else np.zeros(size, np.int64)

        return player

    args = {"neurons": 5, "window": 10, "ensembles": 2, "levels": levels}
    examine(EnvConfig(id="oscillator/bvp", args=args, previous=True), 1, make_player, tmp_path)
    nothing = [0.0] if levels is None else [float(level == 10) for level in range(21)]
    assert seen[0].tolist() == [nothing] * 2
