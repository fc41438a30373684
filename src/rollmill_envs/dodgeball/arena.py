"""The numbers of the scene, and the little vector geometry that physics, rays and camera share.

World: origin at the waypoint in the middle of the box, x towards the front wall with the launchers, y to the left,
z up. Body: x ahead, y left, z up (the rotors' axis). An attitude is the unit quaternion (w, x, y, z) from body to
world.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmill.native import compiled
from rollmill.types import Array
from rollmill_envs.dodgeball.config import RATE, DodgeballConfig

HALF_X, HALF_Y, HALF_Z = 7.5, 7.5, 4.5  # of the box: 15 × 15 × 9 m
SPAWN = (3.0, 3.0, 1.5)  # half of the spawn box: 6 × 6 × 3 m
SPAWN_SPEED = 4.0  # metres per second along each axis at most: an episode begins in flight
SPAWN_YAW = 0.35  # radians to either side of the front wall
GRAVITY = 9.81
SECONDS = 1.0 / RATE  # per step; also how long the force of a throw acts
THRUST = 20.0  # newtons along the axis of the rotors: pushed down, not at all, or up
TURN_RATE = 8.0  # radians per second that a pitch, roll or yaw command asks for
TURN_LAG = 0.05  # seconds in which the rotation follows its command by 63 %
DRAG = 0.3  # newtons per metre per second

# columns of a drone's state
POSITION, VELOCITY, ATTITUDE, TURNING = 0, 3, 6, 10
STATE = 13
# columns of a ball
BALL_SPEED, IS_FLYING = 3, 6
BALL = 7
# what a step's reward is made of; the last three are also what ends an episode
TERMS = ("waypoint", "survival", "tilt", "flip", "hit", "exit")
WAYPOINT, SURVIVAL, TILT, FLIP, HIT, EXIT = range(6)


class ArenaConstants(NamedTuple):
    """The settings as the compiled functions take them."""

    mode: int
    interval: int  # steps
    force_min: float
    force_max: float
    spread: float
    ball_mass: float
    ball_radius: float
    drone_mass: float
    drone_radius: float
    tree_radius: float
    ray_range: float
    waypoint_reward: float
    survival_reward: float
    tilt_penalty: float
    flip_penalty: float
    hit_penalty: float
    exit_penalty: float


def constants_of(settings: DodgeballConfig) -> ArenaConstants:
    """The settings, flat."""
    values = settings.model_dump() | {"interval": settings.interval_steps}
    return ArenaConstants._make(values[name] for name in ArenaConstants._fields)


class Scene(NamedTuple):
    """The state of K environments; all of it, so that a row of each array is a snapshot."""

    drone: Array  # float64 [K, 13]: position, velocity, attitude, turning rates about the body's axes
    balls: Array  # float64 [K, B, 7]: position, velocity, whether it is in the air
    launchers: Array  # float64 [K, L, 3]: where on the front wall
    waits: Array  # int64 [K, L]: steps until the next ball
    trees: Array  # float64 [K, N, 2]: x, y
    chance: Array  # uint64 [K]: state of the row's generator
    steps: Array  # int64 [K]
    ended: Array  # bool [K]
    terms: Array  # float64 [K, 6]: the last step's reward, term by term
    cause: Array  # int64 [K]: the term (FLIP, HIT, EXIT) whose condition ended the episode, or 0


def empty_scene(settings: DodgeballConfig, size: int) -> Scene:
    """Arrays for `size` environments, none of which is running."""
    trees, launchers = settings.trees or 0, settings.launchers
    speed = settings.force_min * SECONDS / settings.ball_mass
    flight = 2 * HALF_X * 1.5 / speed * RATE  # steps; one and a half times straight across is longer than any
    balls = launchers * (int(min(flight, 500.0)) // settings.interval_steps + 2)
    return Scene(
        drone=np.zeros((size, STATE)),
        balls=np.zeros((size, balls, BALL)),
        launchers=np.zeros((size, launchers, 3)),
        waits=np.zeros((size, launchers), np.int64),
        trees=np.zeros((size, trees, 2)),
        chance=np.zeros(size, np.uint64),
        steps=np.zeros(size, np.int64),
        ended=np.ones(size, bool),
        terms=np.zeros((size, len(TERMS))),
        cause=np.zeros(size, np.int64),
    )


@compiled
def rotation(drone: Array, matrix: Array) -> None:
    """The attitude as a matrix [3, 3] whose columns are the body's axes in the world."""
    w, x, y, z = drone[ATTITUDE], drone[ATTITUDE + 1], drone[ATTITUDE + 2], drone[ATTITUDE + 3]
    matrix[0, 0], matrix[0, 1], matrix[0, 2] = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
    matrix[1, 0], matrix[1, 1], matrix[1, 2] = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
    matrix[2, 0], matrix[2, 1], matrix[2, 2] = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)
