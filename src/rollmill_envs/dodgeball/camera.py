"""A picture of the scene from behind the drone, by tracing a ray per pixel; compiled.

It has nothing to do with the rays that the drone sees: it shows box, floor grid, launchers (dark), balls (orange, with
shadows on the floor), trees, the drone (front rotors red) and the waypoint, in the green zone where the reward is full.
"""

from __future__ import annotations

import math

import numpy as np

from rollmill.native import compiled
from rollmill.types import Array
from rollmill_envs.dodgeball.arena import HALF_X, HALF_Y, HALF_Z, IS_FLYING, ArenaConstants, Scene, rotation

HEIGHT, WIDTH = 240, 320
_SAMPLES = 2  # rays per pixel along each side: edges are smooth
_VIEW = math.tan(math.radians(36))  # half the width of the view, per metre ahead
_BEHIND, _ABOVE = 4.2, 2.0  # metres from the drone to the camera
_FOLLOWS = 0.75  # fraction of the drone's motion that the camera follows, so that the drone is seen to move
_FULL_REWARD = 1 / 1.1 - 0.5  # metres from the waypoint within which its reward is at the clamp
_GRID = 1.5  # metres between the lines on floor and walls
_ARM = 0.21  # metres from the drone's middle to a rotor, along each axis of the body
_LAUNCHER_RADIUS = 0.4
_FAR = 1e9


def picture(scene: Scene, constants: ArenaConstants, k: int) -> Array:
    """Row k as it is now, uint8 [240, 320, 3]."""
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    flying = scene.balls[k, scene.balls[k, :, IS_FLYING] != 0.0]
    _draw(image, scene.drone[k], flying, scene.launchers[k], scene.trees[k], constants)
    return image


@compiled
def _draw(image: Array, drone: Array, balls: Array, launchers: Array, trees: Array, constants: ArenaConstants) -> None:
    body = np.empty((3, 3))
    rotation(drone, body)
    eye = np.array((_FOLLOWS * drone[0] - _BEHIND, _FOLLOWS * drone[1], _FOLLOWS * drone[2] + _ABOVE))
    ahead = np.array((drone[0] + 1.0 - eye[0], drone[1] - eye[1], drone[2] - eye[2]))
    ahead /= math.sqrt((ahead * ahead).sum())
    right = np.array((ahead[1], -ahead[0], 0.0)) / math.hypot(ahead[0], ahead[1])
    up = np.array((right[1] * ahead[2], -right[0] * ahead[2], right[0] * ahead[1] - right[1] * ahead[0]))
    colour, total, ray = np.empty(3), np.empty(3), np.empty(3)
    pixel = 2 * _VIEW / WIDTH
    for i in range(HEIGHT):
        for j in range(WIDTH):
            total[:] = 0.0
            for sample in range(_SAMPLES * _SAMPLES):
                across = (j + (sample % _SAMPLES + 0.5) / _SAMPLES - WIDTH / 2) * pixel
                upward = (HEIGHT / 2 - i - (sample // _SAMPLES + 0.5) / _SAMPLES) * pixel
                length = 1 / math.sqrt(1 + across * across + upward * upward)
                for axis in range(3):
                    ray[axis] = (ahead[axis] + across * right[axis] + upward * up[axis]) * length
                _trace(eye, ray, body, drone, balls, launchers, trees, constants, colour)
                for channel in range(3):
                    total[channel] += colour[channel]
            for channel in range(3):
                image[i, j, channel] = np.uint8(min(255.0, total[channel] / (_SAMPLES * _SAMPLES)))


@compiled
def _trace(
    eye: Array,
    ray: Array,
    body: Array,
    drone: Array,
    balls: Array,
    launchers: Array,
    trees: Array,
    constants: ArenaConstants,
    colour: Array,
) -> None:
    """The colour of whatever a ray meets first."""
    nearest = _room(eye, ray, drone, balls, launchers, constants, colour)
    for n in range(trees.shape[0]):
        distance = _to_tree(eye, ray, trees[n, 0], trees[n, 1], constants.tree_radius)
        if distance < nearest:
            nearest = distance
            light = (eye[1] + distance * ray[1] - trees[n, 1]) / constants.tree_radius
            _paint(colour, 125.0, 90.0, 60.0, 0.75 + 0.25 * light)
    for b in range(balls.shape[0]):
        distance = _to_sphere(eye, ray, balls[b, 0], balls[b, 1], balls[b, 2], constants.ball_radius)
        if distance < nearest:
            nearest = distance
            light = (eye[2] + distance * ray[2] - balls[b, 2]) / constants.ball_radius
            _paint(colour, 255.0, 140.0, 30.0, 0.72 + 0.28 * light)
    distance = _to_sphere(eye, ray, drone[0], drone[1], drone[2], 0.11)
    if distance < nearest:
        nearest = distance
        _paint(colour, 60.0, 70.0, 160.0, 0.75 + 0.25 * (eye[2] + distance * ray[2] - drone[2]) / 0.11)
    nearest = _frame(eye, ray, body, drone, nearest, colour)
    if _to_sphere(eye, ray, 0.0, 0.0, 0.0, 0.08) < nearest:
        _paint(colour, 20.0, 170.0, 60.0, 1.0)
    elif _to_sphere(eye, ray, 0.0, 0.0, 0.0, _FULL_REWARD) < nearest:
        for channel in range(3):
            colour[channel] *= 0.75
        colour[1] += 45.0


@compiled
def _paint(colour: Array, red: float, green: float, blue: float, light: float) -> None:
    colour[0], colour[1], colour[2] = red * light, green * light, blue * light


@compiled
def _to_sphere(eye: Array, ray: Array, x: float, y: float, z: float, radius: float) -> float:
    """How far a ray goes until it enters a sphere; very far if it doesn't."""
    x, y, z = x - eye[0], y - eye[1], z - eye[2]
    along = x * ray[0] + y * ray[1] + z * ray[2]
    inside = radius * radius - (x * x + y * y + z * z - along * along)
    return along - math.sqrt(inside) if inside >= 0.0 and along > 0.0 else _FAR


@compiled
def _to_tree(eye: Array, ray: Array, x: float, y: float, radius: float) -> float:
    """How far a ray goes until it enters an upright cylinder; very far if it doesn't."""
    x, y = x - eye[0], y - eye[1]
    flat, along = ray[0] * ray[0] + ray[1] * ray[1], ray[0] * x + ray[1] * y
    inside = along * along - flat * (x * x + y * y - radius * radius)
    return (along - math.sqrt(inside)) / flat if inside >= 0.0 and along > 0.0 else _FAR


@compiled
def _room(
    eye: Array, ray: Array, drone: Array, balls: Array, launchers: Array, constants: ArenaConstants, colour: Array
) -> float:
    """Paint the wall, floor or ceiling at which a ray leaves the box; how far that is."""
    along_x = (math.copysign(HALF_X, ray[0]) - eye[0]) / ray[0]
    along_y = (math.copysign(HALF_Y, ray[1]) - eye[1]) / ray[1]
    along_z = (math.copysign(HALF_Z, ray[2]) - eye[2]) / ray[2]
    distance: float = min(along_x, min(along_y, along_z))
    if distance <= 0.0:
        _paint(colour, 40.0, 44.0, 52.0, 1.0)  # the camera looks past the box
        return _FAR
    x, y, z = eye[0] + distance * ray[0], eye[1] + distance * ray[1], eye[2] + distance * ray[2]
    if distance == along_z:
        floor = ray[2] < 0.0
        _paint(colour, 150.0, 155.0, 165.0, 1.0 if floor else 1.3)
        line = min(_to_line(x), _to_line(y))
        if floor:
            shade = 1.0
            if math.hypot(x - drone[0], y - drone[1]) < 0.3:
                shade = 0.55
            for b in range(balls.shape[0]):
                if math.hypot(x - balls[b, 0], y - balls[b, 1]) < constants.ball_radius:
                    shade = 0.55
            _paint(colour, colour[0], colour[1], colour[2], shade)
    elif distance == along_x:
        _paint(colour, 185.0, 195.0, 210.0, 1.0)
        line = min(_to_line(y), _to_line(z))
        for n in range(launchers.shape[0]):
            if ray[0] > 0.0 and math.hypot(y - launchers[n, 1], z - launchers[n, 2]) < _LAUNCHER_RADIUS:
                _paint(colour, 50.0, 35.0, 35.0, 1.0)
                line = 1.0
    else:
        _paint(colour, 170.0, 180.0, 195.0, 1.0)
        line = min(_to_line(x), _to_line(z))
    if line < 0.03:
        _paint(colour, colour[0], colour[1], colour[2], 0.8)
    return distance


@compiled
def _to_line(place: float) -> float:
    """How far a coordinate is from the nearest line of the grid."""
    return abs(place - _GRID * round(place / _GRID))


@compiled
def _frame(eye: Array, ray: Array, body: Array, drone: Array, nearest: float, colour: Array) -> float:
    """Paint rotors and arms: discs and bars in the plane across the rotors' axis."""
    facing = ray[0] * body[0, 2] + ray[1] * body[1, 2] + ray[2] * body[2, 2]
    x, y, z = drone[0] - eye[0], drone[1] - eye[1], drone[2] - eye[2]
    if facing == 0.0:
        return nearest
    distance: float = (x * body[0, 2] + y * body[1, 2] + z * body[2, 2]) / facing
    if distance <= 0.0 or distance >= nearest:
        return nearest
    x, y, z = distance * ray[0] - x, distance * ray[1] - y, distance * ray[2] - z
    u = x * body[0, 0] + y * body[1, 0] + z * body[2, 0]
    v = x * body[0, 1] + y * body[1, 1] + z * body[2, 1]
    from_hub = math.hypot(abs(u) - _ARM, abs(v) - _ARM)
    if from_hub < 0.15:
        light = 0.6 if from_hub < 0.03 else 1.0
        if u > 0.0:
            _paint(colour, 225.0, 60.0, 60.0, light)
        else:
            _paint(colour, 70.0, 75.0, 85.0, light)
        return distance
    if abs(abs(u) - abs(v)) < 0.04 and abs(u) < _ARM:
        _paint(colour, 35.0, 35.0, 40.0, 1.0)
        return distance
    return nearest
