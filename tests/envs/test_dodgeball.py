"""Drone dodgeball by hand arithmetic: flight, every term of the reward, every end, modes, flattening, calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill_envs.dodgeball import SCRIPTS
from rollmill_envs.dodgeball.arena import ATTITUDE, TURNING, VELOCITY

ON = np.ones(1, bool)
HOLD = np.array([[1, 1, 1, 1]])
# Without thrust v' = v + (-9.81 - 0.3 v / 1.5) / 50: this one is stopped by a step, so the drone stays where it is.
STAYS = 0.1962 / 0.996


def drone(position=(0, 0, 0), velocity=(0, 0, STAYS), tilt=0.0, **args):
    """A group of one drone in a quiet box, put where the test wants it; `tilt` in degrees, ahead."""
    group = make_group(EnvConfig(id="dodgeball/box", args={"launchers": 0} | args), 1)
    group.reset(ON, np.zeros(1, int))
    state = group.scene.drone[0]
    state[:] = 0
    state[:3], state[VELOCITY : VELOCITY + 3] = position, velocity
    state[ATTITUDE], state[ATTITUDE + 2] = math.cos(math.radians(tilt) / 2), math.sin(math.radians(tilt) / 2)
    return group


def step(group, action=HOLD):
    """(reward, terminated, truncated) of the one drone."""
    return tuple(array[0].item() for array in group.step(action, ON))


def with_ball(group, position, velocity):
    """The same group with a ball in the air."""
    scene = group.scene._replace(balls=np.array([[[*position, *velocity, 1.0]]], float))
    group.scene = scene
    return group


def test_without_thrust_it_falls():
    group = drone(velocity=(0, 0, 0))
    step(group)
    # v = -9.81 / 50, z = v / 50
    assert group.scene.drone[0, VELOCITY + 2] == pytest.approx(-0.1962)
    assert group.scene.drone[0, 2] == pytest.approx(-0.003924)


@pytest.mark.parametrize(("command", "newtons"), [(0, -20), (1, 0), (2, 20)])
def test_thrust_pushes_along_the_rotors_axis(command, newtons):
    group = drone(velocity=(0, 0, 0), tilt=30)
    step(group, np.array([[1, 1, command, 1]]))
    push = newtons / 1.5
    x, _, z = group.scene.drone[0, VELOCITY : VELOCITY + 3]
    # leaning ahead by 30° turns the axis to (sin 30°, 0, cos 30°)
    assert (x, z) == pytest.approx((push * 0.5 / 50, (push * math.cos(math.pi / 6) - 9.81) / 50))


def test_drag_is_proportional_to_velocity_and_mass_makes_lazy():
    for mass in (1.0, 1.8):
        group = drone(velocity=(4, 0, 0), drone_mass=mass)
        step(group, np.array([[1, 1, 2, 1]]))
        assert group.scene.drone[0, VELOCITY] == pytest.approx(4 - 0.3 * 4 / mass / 50)
        assert group.scene.drone[0, VELOCITY + 2] == pytest.approx((20 / mass - 9.81) / 50)


def test_turning_follows_its_command_with_a_lag_and_rotates_exactly():
    group = drone()
    step(group, np.array([[2, 1, 1, 1]]))
    # 8 rad/s wanted; in 1/50 s the rotation goes 1 - exp(-0.02 / 0.05) = 0.3297 of the way
    rate = 8 * (1 - math.exp(-0.4))
    assert group.scene.drone[0, TURNING + 1] == pytest.approx(rate)
    w, x, y, z = group.scene.drone[0, ATTITUDE : ATTITUDE + 4]
    assert (w, x, y, z) == pytest.approx((math.cos(rate / 100), 0, math.sin(rate / 100), 0))


@pytest.mark.parametrize(("axis", "direction"), [(0, (1, 0)), (1, (0, -1))])
def test_pitch_leads_ahead_and_roll_to_the_right(axis, direction):
    group = drone(velocity=(0, 0, 0))
    more, less = HOLD.copy(), HOLD.copy()
    more[0, axis], more[0, 2], less[0, axis], less[0, 2] = 2, 2, 0, 2
    for _ in range(5):
        step(group, more)
    sideways = group.scene.drone[0, VELOCITY : VELOCITY + 2] @ np.array(direction)
    assert sideways > 0.1
    other = drone(velocity=(0, 0, 0))
    for _ in range(5):
        step(other, less)
    assert other.scene.drone[0, VELOCITY : VELOCITY + 2] @ np.array(direction) == pytest.approx(-sideways)


def test_yaw_turns_to_the_left():
    group = drone()
    for _ in range(5):
        step(group, np.array([[1, 1, 1, 2]]))
    assert group.scene.drone[0, ATTITUDE + 3] > 0.1  # a positive turn about z takes x towards y, and y is left


@pytest.mark.parametrize(
    ("position", "reward"),
    [
        ((0, 0, 0), 1.01),  # 1 / 0.5 - 0.1 = 1.9, clamped to 1; + 0.01
        ((0.4, 0, 0), 1.01),  # 1 / 0.9 - 0.1 = 1.0111, clamped
        ((1.5, 0, 0), 0.41),  # 1 / 2 - 0.1 + 0.01
        ((0, 3, 4), 1 / 5.5 - 0.09),
        ((7, 7, 4), 0.01),  # d = 10.68: 1 / 11.18 - 0.1 < 0, clamped to 0
    ],
)
def test_the_reward_for_being_near_the_waypoint_and_alive(position, reward):
    group = drone(position)
    assert step(group) == (pytest.approx(reward), False, False)
    assert group.info(0)["reward"]["survival"] == 0.01
    assert group.info(0)["distance"] == pytest.approx(math.hypot(*position))
    assert group.info(0)["cause"] == ""


@pytest.mark.parametrize(
    ("tilt", "reward", "ends"), [(69, 1.01, False), (71, 0.91, False), (84, 0.91, False), (86, 0.0, True)]
)
def test_tilting_costs_and_flipping_ends(tilt, reward, ends):
    group = drone(tilt=tilt)
    # beyond 85°: 1 - 1, and nothing for surviving
    assert step(group) == (pytest.approx(reward), ends, False)
    assert group.info(0)["cause"] == ("flip" if ends else "")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("side", [-1, 1])
def test_leaving_the_box_ends(axis, side):
    position, velocity = np.zeros(3), np.array([0, 0, STAYS])
    edge = (7.5, 7.5, 4.5)[axis]
    position[axis] = side * (edge - 0.005)
    assert step(drone(position, velocity)) == (pytest.approx(max(0, 1 / (edge + 0.495) - 0.1) + 0.01), False, False)
    velocity[axis] += side * 0.5 / 0.996  # drag leaves 0.5 m/s: 1 cm in a step
    group = drone(position, velocity)
    # at 7.505 m the waypoint gives 1 / 8.005 - 0.1 = 0.0249, at 4.505 m 1 / 5.005 - 0.1 = 0.0998; - 1
    assert step(group) == (pytest.approx(1 / (edge + 0.505) - 0.1 - 1), True, False)
    assert group.info(0)["cause"] == "exit"


@pytest.mark.parametrize(
    ("position", "velocity", "hits"),
    [
        ((0.54, 0, 0), (0, 0, 9.81 / 100), True),  # 0.3 + 0.25 = 0.55
        ((0.56, 0, 0), (0, 0, 9.81 / 100), False),
        ((1, 0, 0), (-100, 0, 9.81 / 100), True),  # jumps from 1 m before to 1 m behind: touched on the way
        ((1, 0.54, 0), (-100, 0, 9.81 / 100), True),
        ((1, 0.56, 0), (-100, 0, 9.81 / 100), False),
    ],
)
def test_a_ball_hits_also_between_two_steps(position, velocity, hits):
    group = with_ball(drone(), position, velocity)
    assert step(group) == (pytest.approx(0.0 if hits else 1.01), hits, False)  # 1 - 1
    assert group.info(0)["cause"] == ("hit" if hits else "")


def test_a_ball_flies_a_parabola_until_it_leaves_the_box():
    group = with_ball(drone(position=(-5, 0, 0), drone_mass=1.0), (0, 3, 0), (10, 0, 2))
    for n in range(1, 38):
        step(group, np.array([[1, 1, 2 if n % 2 else 1, 1]]))
        t = n / 50
        assert group.scene.balls[0, 0, :3] == pytest.approx((10 * t, 3, 2 * t - 9.81 * t * t / 2))
    assert group.scene.balls[0, 0, 6] == 1  # at 7.4 m
    step(group)
    assert group.scene.balls[0, 0, 6] == 0  # 7.6 m


def test_a_launcher_throws_at_the_interval_where_the_drone_will_be():
    group = make_group(EnvConfig(id="dodgeball/box", args={"spread": 0.0, "launch_interval": 0.6}), 1)
    group.reset(ON, np.array([5]))
    scene = group.scene
    assert 15 <= scene.waits[0, 0] <= 30
    scene.waits[0, 0] = 1
    scene.drone[0, :6] = 0, 0, 0, 1, 2, 0.5
    start = scene.launchers[0, 0].copy()
    assert start[0] == 7.5
    step(group)
    assert scene.waits[0, 0] == 30
    (ball,) = scene.balls[0, scene.balls[0, :, 6] == 1]
    velocity = ball[3:6] + np.array([0, 0, 9.81 / 50])  # before the step
    # it would pass through (T, 2T, T/2) after T = |start| / speed, with the speed of a force of 60 … 90 for 1/50 s
    duration = (start[0] - 0) / (1 - velocity[0])  # start + velocity T = T
    assert start + velocity * duration - (0, 0, 9.81 * duration**2 / 2) == pytest.approx(
        np.array([1, 2, 0.5]) * duration
    )
    assert 60 / 50 / 0.12 <= np.linalg.norm(start) / duration <= 90 / 50 / 0.12
    for _ in range(29):
        scene.drone[0, :6] = -5, 0, 0, 0, 0, 0
        step(group)
    scene.drone[0, :6] = -5, 0, 0, 0, 0, 0
    step(group)
    assert scene.waits[0, 0] == 30  # thrown again


def test_a_tree_hits_and_stops_balls():
    group = make_group(EnvConfig(id="dodgeball/forest", args={"launchers": 0, "trees": 1}), 1)
    for offset, hits in ((0.59, True), (0.61, False)):  # 0.3 + 0.3
        group.reset(ON, np.zeros(1, int))
        group.scene.drone[0] = 0, 0, 0, 0, 0, STAYS, 1, 0, 0, 0, 0, 0, 0
        group.scene.trees[0] = offset, 0
        assert step(group) == (pytest.approx(0.0 if hits else 1.01), hits, False)
    group.reset(ON, np.zeros(1, int))
    group.scene.drone[0] = 0, 0, 0, 0, 0, STAYS, 1, 0, 0, 0, 0, 0, 0
    group.scene.trees[0] = 3, 0
    with_ball(group, (3.6, 0, 0), (-10, 0, 0))
    step(group)  # 3.4 m: 0.4 from the axis, and 0.25 + 0.3 touch
    assert group.scene.balls[0, 0, 6] == 0


def test_trees_leave_room_and_number_eight_in_the_forest():
    group = make_group(EnvConfig(id="dodgeball/forest"), 50)
    group.reset(np.ones(50, bool), np.arange(50))
    assert group.scene.trees.shape == (50, 8, 2)
    assert np.linalg.norm(group.scene.trees, axis=2).min() > 1.8
    assert np.linalg.norm(group.scene.trees - group.scene.drone[:, None, :2], axis=2).min() > 1.8


def test_the_time_limit_truncates_and_the_configs_own_wins():
    for config, limit in (
        (EnvConfig(id="dodgeball/box", args={"launchers": 0}, time_limit=3), 3),
        (EnvConfig(id="dodgeball/box", args={"launchers": 0}, time_limit=5), 5),
    ):
        group = make_group(config, 1)
        group.reset(ON, np.zeros(1, int))
        flags = [step(group)[1:] for _ in range(limit)]
        assert flags == [(False, False)] * (limit - 1) + [(False, True)]
        assert group.info(0)["cause"] == "time"


def test_it_spawns_in_the_spawn_box_upright_and_facing_the_launchers():
    group = make_group(EnvConfig(id="dodgeball/box"), 400)
    group.reset(np.ones(400, bool), np.arange(400))
    state = group.scene.drone
    assert np.abs(state[:, :3]).max(0) == pytest.approx([3, 3, 1.5], rel=0.03)
    assert np.abs(state[:, :3]).max(0).tolist() <= [3, 3, 1.5]
    assert np.abs(state[:, 3:6]).max() <= 4
    assert not state[:, [ATTITUDE + 1, ATTITUDE + 2, 10, 11, 12]].any()
    assert np.abs(2 * np.arctan2(state[:, 9], state[:, 6])).max() <= 0.35


def play(args, actions, seed=3):
    group = make_group(EnvConfig(id="dodgeball/box", args=args), 1)
    group.reset(ON, np.array([seed]))
    story = []
    for action in actions:
        result = step(group, action)
        story.append((group.scene.drone.tobytes(), result))
        if result[1] or result[2]:
            break
    return story


def test_axes_that_the_mode_leaves_out_do_nothing():
    generator = np.random.default_rng(0)
    actions = generator.integers(3, size=(40, 1, 4))
    for mode, obeyed in ((1, [2]), (2, [1, 2]), (3, [0, 1, 2, 3])):
        others = actions.copy()
        ignored = [axis for axis in range(4) if axis not in obeyed]
        others[:, :, ignored] = generator.integers(3, size=(40, 1, len(ignored)))
        assert play({"mode": mode}, actions) == play({"mode": mode}, others)
        for axis in obeyed:
            others = actions.copy()
            others[:, :, axis] = (others[:, :, axis] + 1) % 3
            assert play({"mode": mode}, actions) != play({"mode": mode}, others)


def test_flattened_actions_are_the_digits_of_a_number_in_base_three():
    flat = np.arange(81)[::2, None]
    digits = np.array([[[int(d) for d in np.base_repr(n + 81, 3)[1:]]] for n in flat[:, 0]])  # 81 = 10000: four digits
    assert play({"flatten": True}, flat) == play({}, digits)


def returns(policy, episodes, **args):
    """Mean length and return over the first episode of each row."""
    config = EnvConfig(id="dodgeball/box", args={"rays": False} | args)
    group = make_group(config, episodes)
    everyone = np.ones(episodes, bool)
    group.reset(everyone, np.arange(episodes))
    generator = np.random.default_rng(0)
    script = SCRIPTS[policy](config, episodes) if policy in SCRIPTS else None
    running, first = everyone.copy(), everyone
    length, total = np.zeros(episodes), np.zeros(episodes)
    while running.any():
        action = generator.integers(3, size=(episodes, 4)) if script is None else script(group, first)
        first = ~everyone
        result = group.step(action, running)
        length += running
        total += result.reward
        running &= ~(result.terminated | result.truncated)
    return length.mean(), total.mean()


def test_a_random_policy_starts_where_the_drone_team_started():
    length, total = returns("random", 2000)
    assert abs(length - 50) <= 10
    assert abs(total - 6) <= 3


def test_hovering_beats_chance_and_dodging_beats_hovering():
    hover_length, hover = returns("hover", 500)
    dodger_length, dodger = returns("dodger", 500)
    assert hover > 20
    assert hover_length < 110
    assert dodger > 88  # what the drone team reached, so it can be reached
    assert dodger_length > 110
    assert returns("dodger", 500, flatten=True) == (dodger_length, dodger)


@pytest.mark.parametrize(
    ("env_id", "args", "message"),
    [
        ("dodgeball/bix", {}, "env.id=dodgeball/bix: no such environment; did you mean 'dodgeball/box'?"),
        ("dodgeball/box", {"mod": 1}, "unknown key 'mod': did you mean 'mode'?"),
        ("dodgeball/box", {"mode": 4}, "mode: 4 is unknown"),
        ("dodgeball/box", {"ball_mass": 0.0}, "ball_mass: 0.0 is out of range: must be > 0"),
        ("dodgeball/box", {"force_min": 95.0}, "force_min=95.0 is above force_max=90.0; swap them"),
        ("dodgeball/box", {"drone_mass": 2.5}, "drone_mass=2.5 can't be lifted by 20 N; choose less than 2.0"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(env_id, args, message):
    with pytest.raises(Refused) as refusal:
        make_group(EnvConfig(id=env_id, args=args), 1)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_the_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("rollmill_envs.dodgeball.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r'needs the extra \'native\': pip install "rollmill\[native\]"'):
        make_group(EnvConfig(id="dodgeball/box"), 1)
