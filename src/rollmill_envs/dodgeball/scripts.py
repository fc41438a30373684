"""Scripted pilots that read the true state of the scene: baselines for a policy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.group import EnvGroup
from rollmill.envs.player import base_group
from rollmill.types import Array
from rollmill_envs.dodgeball.arena import (
    ATTITUDE,
    BALL_SPEED,
    DRAG,
    GRAVITY,
    IS_FLYING,
    SECONDS,
    THRUST,
    TURN_LAG,
    TURN_RATE,
    TURNING,
    VELOCITY,
)
from rollmill_envs.dodgeball.dodgeball_group import DodgeballGroup

_STIFFNESS, _DAMPING = 4.0, 3.5  # wanted acceleration per metre and per metre per second
_LEAN = math.tan(math.radians(35))  # wanted sideways acceleration at most, in units of gravity
_ALERT = 0.9  # seconds before a ball comes nearest that the dodger reacts
_MARGIN = 0.5  # metres between ball and drone that the dodger wants
_DODGE = 14.0  # wanted acceleration away from a ball, m/s²
_AGAINST_GRAVITY = np.array([0.0, 0.0, GRAVITY])


class Pilot:
    """Flies to the waypoint and stays there; one that `dodges` gives way to balls that would touch it."""

    def __init__(self, size: int, dodges: bool) -> None:
        self._dodges = dodges
        self._levels = np.zeros(size)  # thrust lost by rounding to a level, in levels

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Commands for all rows."""
        base = base_group(group)
        assert isinstance(base, DodgeballGroup)
        drone = base.scene.drone
        self._levels[reset] = 0.0
        wanted = -_STIFFNESS * drone[:, :3] - _DAMPING * drone[:, VELOCITY : VELOCITY + 3]
        if self._dodges:
            wanted += _evasion(base)
        sideways = np.linalg.norm(wanted[:, :2], axis=1, keepdims=True)
        wanted[:, :2] *= np.minimum(1.0, _LEAN * GRAVITY / np.maximum(sideways, 1e-9))
        wanted[:, 2] = np.clip(wanted[:, 2], -0.7 * GRAVITY, None)  # never so little thrust that leaning does nothing
        actions = self._commands(drone, wanted, base.settings.drone_mass)
        return actions @ np.array([27, 9, 3, 1]) if base.settings.flatten else actions

    def _commands(self, drone: Array, wanted: Array, mass: float) -> Array:
        """Commands that bring about the wanted acceleration [K, 3]."""
        force = (wanted + _AGAINST_GRAVITY) * mass + DRAG * drone[:, VELOCITY : VELOCITY + 3]
        size = np.linalg.norm(force, axis=1)
        axis = force / np.maximum(size, 1e-9)[:, None]  # where the rotors should point
        w, x, y, z = drone[:, ATTITUDE : ATTITUDE + 4].T
        ahead = np.stack((1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)), -1)
        left = np.stack((2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)), -1)
        rotors = np.cross(ahead, left)
        # angles still to go about the body's axes, less what the turning does before it stops
        to_pitch = (axis * ahead).sum(1) - drone[:, TURNING + 1] * TURN_LAG
        to_roll = -(axis * left).sum(1) - drone[:, TURNING] * TURN_LAG
        to_yaw = -np.arctan2(ahead[:, 1], ahead[:, 0]) - drone[:, TURNING + 2] * TURN_LAG
        pitch, roll, yaw = (_towards(angle) for angle in (to_pitch, to_roll, to_yaw))

        levels = np.clip((force * rotors).sum(1) / THRUST, -1.0, 1.0) + self._levels
        thrust = np.clip(np.rint(levels), -1, 1)
        self._levels = np.clip(levels - thrust, -0.5, 0.5)
        return np.stack((pitch, roll, 1 + thrust.astype(np.int64), yaw), -1)


def _towards(angle: Array) -> Array:
    """The command that turns by an angle: none where a step of turning would overshoot."""
    return (1 + np.sign(angle) * (np.abs(angle) > 0.5 * TURN_RATE * SECONDS)).astype(np.int64)


def _evasion(group: DodgeballGroup) -> Array:
    """Acceleration [K, 3] away from the balls that are about to touch the drone."""
    drone, balls = group.scene.drone, group.scene.balls
    offset = balls[:, :, :3] - drone[:, None, :3]
    speed = balls[:, :, BALL_SPEED : BALL_SPEED + 3] - drone[:, None, VELOCITY : VELOCITY + 3]
    square = np.maximum((speed * speed).sum(2), 1e-9)
    moment = -(offset * speed).sum(2) / square  # when the ball comes nearest if both go straight on
    missed = offset + speed * moment[:, :, None]
    missed[:, :, 2] -= 0.5 * GRAVITY * moment**2  # the ball falls, the drone doesn't
    distance = np.linalg.norm(missed, axis=2)
    reach = group.settings.drone_radius + group.settings.ball_radius + _MARGIN
    threatens = (balls[:, :, IS_FLYING] != 0) & (moment > 0) & (moment < _ALERT) & (distance < reach)
    # heading straight at the drone: every direction is equal, and up is the fastest
    away = np.where(distance[:, :, None] > 0.05, -missed / np.maximum(distance, 1e-9)[:, :, None], (0.0, 0.0, 1.0))
    evasion: Array = (away * (_DODGE * threatens)[:, :, None]).sum(1)
    return evasion
