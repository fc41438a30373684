"""All rows of a group by one step: flight, balls, reward, end; compiled."""

from __future__ import annotations

import math

import numpy as np

from rollmill.native import compiled
from rollmill.types import Array
from rollmill_envs.dodgeball.arena import (
    EXIT,
    FLIP,
    HALF_X,
    HALF_Y,
    HALF_Z,
    HIT,
    POSITION,
    SURVIVAL,
    TILT,
    WAYPOINT,
    ArenaConstants,
    Scene,
)
from rollmill_envs.dodgeball.physics import fly, move_balls, throw, touches_tree

_COS_70, _COS_85 = math.cos(math.radians(70)), math.cos(math.radians(85))


@compiled
def step_rows(
    scene: Scene,
    constants: ArenaConstants,
    action: Array,
    active: Array,
    time_limit: int,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> None:
    """Step the active rows with their actions [K, 4]; the others get 0 and False."""
    matrix = np.empty((3, 3))
    before = np.empty(3)
    for k in range(active.shape[0]):
        reward[k], terminated[k], truncated[k] = 0.0, False, False
        if not active[k]:
            continue
        drone, balls, trees, terms = scene.drone[k], scene.balls[k], scene.trees[k], scene.terms[k]
        for n in range(scene.waits.shape[1]):
            scene.waits[k, n] -= 1
            if scene.waits[k, n] <= 0:
                throw(drone, balls, scene.launchers[k, n], scene.chance, k, constants)
                scene.waits[k, n] = constants.interval
        for axis in range(3):
            before[axis] = drone[POSITION + axis]
        fly(drone, action[k], constants, matrix)
        is_hit = move_balls(balls, before, drone, trees, constants)
        if touches_tree(drone, trees, constants.drone_radius + constants.tree_radius):
            is_hit = True
        scene.cause[k] = judge(drone, matrix[2, 2], is_hit, constants, terms)
        for term in range(terms.shape[0]):
            reward[k] += terms[term]
        scene.steps[k] += 1
        terminated[k] = scene.cause[k] > 0
        truncated[k] = scene.steps[k] >= time_limit
        scene.ended[k] = terminated[k] or truncated[k]


@compiled
def judge(drone: Array, upright: float, is_hit: bool, constants: ArenaConstants, terms: Array) -> int:
    """The terms of the reward where the drone is now; which of them (FLIP, HIT, EXIT) ends the episode, or 0.

    `upright` is the cosine of the tilt. Where two conditions end an episode at once, both are punished.
    """
    distance = math.sqrt(drone[POSITION] ** 2 + drone[POSITION + 1] ** 2 + drone[POSITION + 2] ** 2)
    is_outside = abs(drone[POSITION]) > HALF_X or abs(drone[POSITION + 1]) > HALF_Y or abs(drone[POSITION + 2]) > HALF_Z
    cause = FLIP if upright < _COS_85 else HIT if is_hit else EXIT if is_outside else 0
    terms[WAYPOINT] = constants.waypoint_reward * min(1.0, max(0.0, 1 / (distance + 0.5) - 0.1))
    terms[SURVIVAL] = constants.survival_reward if cause == 0 else 0.0
    terms[TILT] = -constants.tilt_penalty if _COS_85 <= upright < _COS_70 else 0.0
    terms[FLIP] = -constants.flip_penalty if upright < _COS_85 else 0.0
    terms[HIT] = -constants.hit_penalty if is_hit else 0.0
    terms[EXIT] = -constants.exit_penalty if is_outside else 0.0
    return cause
