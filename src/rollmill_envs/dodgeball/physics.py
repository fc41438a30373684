"""One step of the drone and of its balls: 1/50 s, compiled."""

from __future__ import annotations

import math

import numpy as np

from rollmill.native import compiled
from rollmill.types import Array
from rollmill_envs.dodgeball.arena import (
    ATTITUDE,
    BALL_SPEED,
    DRAG,
    GRAVITY,
    HALF_X,
    HALF_Y,
    HALF_Z,
    IS_FLYING,
    POSITION,
    SECONDS,
    THRUST,
    TURN_LAG,
    TURN_RATE,
    TURNING,
    VELOCITY,
    ArenaConstants,
    rotation,
)

_FOLLOWS = 1 - math.exp(-SECONDS / TURN_LAG)  # share of the way to its command that the rotation goes in a step


@compiled
def fly(drone: Array, action: Array, constants: ArenaConstants, matrix: Array) -> None:
    """Turn, then push, then move; leaves the new attitude in `matrix`.

    Commands are 0, 1, 2 for less, none, more of pitch (ahead), roll (right), thrust and yaw (left).
    """
    pitch = float(action[0] - 1) if constants.mode >= 3 else 0.0
    roll = float(action[1] - 1) if constants.mode >= 2 else 0.0
    yaw = float(action[3] - 1) if constants.mode >= 3 else 0.0
    drone[TURNING] += (roll * TURN_RATE - drone[TURNING]) * _FOLLOWS
    drone[TURNING + 1] += (pitch * TURN_RATE - drone[TURNING + 1]) * _FOLLOWS
    drone[TURNING + 2] += (yaw * TURN_RATE - drone[TURNING + 2]) * _FOLLOWS
    turn(drone)
    rotation(drone, matrix)
    lift = (action[2] - 1) * THRUST / constants.drone_mass
    for axis in range(3):
        push = matrix[axis, 2] * lift - DRAG * drone[VELOCITY + axis] / constants.drone_mass
        if axis == 2:
            push -= GRAVITY
        drone[VELOCITY + axis] += push * SECONDS
        drone[POSITION + axis] += drone[VELOCITY + axis] * SECONDS


@compiled
def turn(drone: Array) -> None:
    """Rotate about the body's axes by what its turning rates make in a step, exactly."""
    p, q, r = drone[TURNING] * SECONDS, drone[TURNING + 1] * SECONDS, drone[TURNING + 2] * SECONDS
    angle = math.sqrt(p * p + q * q + r * r)
    if angle == 0.0:
        return
    share = math.sin(angle / 2) / angle
    c, p, q, r = math.cos(angle / 2), p * share, q * share, r * share
    w, x, y, z = drone[ATTITUDE], drone[ATTITUDE + 1], drone[ATTITUDE + 2], drone[ATTITUDE + 3]
    w, x, y, z = (
        w * c - x * p - y * q - z * r,
        w * p + x * c + y * r - z * q,
        w * q - x * r + y * c + z * p,
        w * r + x * q - y * p + z * c,
    )
    scale = 1 / math.sqrt(w * w + x * x + y * y + z * z)
    drone[ATTITUDE], drone[ATTITUDE + 1] = w * scale, x * scale
    drone[ATTITUDE + 2], drone[ATTITUDE + 3] = y * scale, z * scale


@compiled
def draw(chance: Array, k: int) -> float:
    """The next uniform number in [0, 1) of row k's own generator (SplitMix64)."""
    chance[k] += np.uint64(0x9E3779B97F4A7C15)
    mixed = chance[k]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return float(mixed >> np.uint64(11)) / 9007199254740992.0  # 2^53


@compiled
def throw(drone: Array, balls: Array, launcher: Array, chance: Array, k: int, constants: ArenaConstants) -> None:
    """Throw a ball to where the drone will be if it keeps its velocity, give or take the spread."""
    force = constants.force_min + (constants.force_max - constants.force_min) * draw(chance, k)
    speed = force * SECONDS / constants.ball_mass
    distance = 0.0
    for axis in range(3):
        distance += (drone[POSITION + axis] - launcher[axis]) ** 2
    duration = math.sqrt(distance) / speed
    free = -1
    for b in range(balls.shape[0]):
        if balls[b, IS_FLYING] == 0.0:
            free = b
            break
    for axis in range(3):
        error = constants.spread * (2 * draw(chance, k) - 1)
        if free < 0:
            continue
        aim = drone[POSITION + axis] + drone[VELOCITY + axis] * duration + error
        balls[free, axis] = launcher[axis]
        balls[free, BALL_SPEED + axis] = (aim - launcher[axis]) / duration
    if free >= 0:
        balls[free, BALL_SPEED + 2] += 0.5 * GRAVITY * duration  # compensates for the fall during the flight
        balls[free, IS_FLYING] = 1.0


@compiled
def move_balls(balls: Array, before: Array, drone: Array, trees: Array, constants: ArenaConstants) -> bool:
    """Move the balls by a step and say whether one touched the drone, which moved from `before` meanwhile."""
    is_hit = False
    reach = constants.drone_radius + constants.ball_radius
    for b in range(balls.shape[0]):
        ball = balls[b]
        if ball[IS_FLYING] == 0.0:
            continue
        # Both moved along straight lines: how near did they come? A fast ball would jump over the drone otherwise.
        along, length, apart = 0.0, 0.0, 0.0
        for axis in range(3):
            start = ball[axis] - before[axis]
            speed = ball[BALL_SPEED + axis]
            if axis == 2:
                ball[axis] += (speed - 0.5 * GRAVITY * SECONDS) * SECONDS
                ball[BALL_SPEED + 2] = speed - GRAVITY * SECONDS
            else:
                ball[axis] += speed * SECONDS
            change = ball[axis] - drone[POSITION + axis] - start
            along -= start * change
            length += change * change
            apart += start * start
        moment = min(1.0, max(0.0, along / length)) if length > 0.0 else 0.0
        nearest = apart - 2 * moment * along + moment * moment * length
        if nearest < reach * reach:
            is_hit = True
        is_outside = abs(ball[0]) > HALF_X or abs(ball[1]) > HALF_Y or abs(ball[2]) > HALF_Z
        if is_outside or touches_tree(ball, trees, constants.ball_radius + constants.tree_radius):
            ball[IS_FLYING] = 0.0
    return is_hit


@compiled
def touches_tree(place: Array, trees: Array, reach: float) -> bool:
    """Whether a point is nearer than `reach` to the axis of a tree."""
    for n in range(trees.shape[0]):
        x, y = place[0] - trees[n, 0], place[1] - trees[n, 1]
        if x * x + y * y < reach * reach:
            return True
    return False
