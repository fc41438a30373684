"""What the drone observes: a 19 × 33 image of ray distances and ten numbers; compiled.

The rays are fixed to the body. Row 0 looks up, column 0 to the left; neighbours are 3.75° apart, so the image spans
120° × 67.5° around the nose. A pixel is 255 · distance / range, rounded, and 255 beyond the range.
"""

from __future__ import annotations

import math

import numpy as np

from rollmill.native import compiled
from rollmill.types import Array
from rollmill_envs.dodgeball.arena import (
    ATTITUDE,
    HALF_X,
    HALF_Y,
    HALF_Z,
    IS_FLYING,
    VELOCITY,
    ArenaConstants,
    Scene,
    rotation,
)

HEIGHT, WIDTH = 19, 33
SPACING = math.radians(3.75)
VECTOR = 10
_MIDDLE_ROW, _MIDDLE_COLUMN = HEIGHT // 2, WIDTH // 2


def ray_directions() -> Array:
    """Unit vectors [19, 33, 3] in the body's frame."""
    up = (_MIDDLE_ROW - np.arange(HEIGHT))[:, None] * SPACING
    left = (_MIDDLE_COLUMN - np.arange(WIDTH))[None, :] * SPACING
    return np.stack(np.broadcast_arrays(np.cos(up) * np.cos(left), np.cos(up) * np.sin(left), np.sin(up)), -1).copy()


@compiled
def see_rows(scene: Scene, constants: ArenaConstants, mask: Array, directions: Array, rays: Array) -> None:
    """Cast the rays of the rows in `mask` into `rays` [K, 1, 19, 33]."""
    matrix = np.empty((3, 3))
    distances = np.empty((HEIGHT, WIDTH))
    ground = np.empty((2, HEIGHT, WIDTH))
    scale = 255.0 / constants.ray_range
    for k in range(mask.shape[0]):
        if not mask[k]:
            continue
        drone = scene.drone[k]
        rotation(drone, matrix)
        to_walls(drone, matrix, directions, distances, ground)
        for n in range(scene.trees.shape[1]):
            to_tree(scene.trees[k, n], constants.tree_radius, drone, ground, distances)
        for b in range(scene.balls.shape[1]):
            if scene.balls[k, b, IS_FLYING] != 0.0:
                to_ball(scene.balls[k, b], constants.ball_radius, drone, matrix, directions, distances)
        for i in range(HEIGHT):
            for j in range(WIDTH):
                rays[k, 0, i, j] = np.uint8(min(255.0, max(0.0, distances[i, j] * scale)) + 0.5)


@compiled
def to_walls(drone: Array, matrix: Array, directions: Array, distances: Array, ground: Array) -> None:
    """How far each ray goes inside the box; a drone that has left the box sees 0 where it looks away from it.

    Leaves x and y of the rays' directions in the world in `ground`.
    """
    for i in range(HEIGHT):
        for j in range(WIDTH):
            a, b, c = directions[i, j, 0], directions[i, j, 1], directions[i, j, 2]
            x = matrix[0, 0] * a + matrix[0, 1] * b + matrix[0, 2] * c
            y = matrix[1, 0] * a + matrix[1, 1] * b + matrix[1, 2] * c
            z = matrix[2, 0] * a + matrix[2, 1] * b + matrix[2, 2] * c
            ground[0, i, j], ground[1, i, j] = x, y
            # copysign instead of a comparison: the loop stays free of branches, and ±0 gives an infinite distance
            along_x = (math.copysign(HALF_X, x) - drone[0]) / x
            along_y = (math.copysign(HALF_Y, y) - drone[1]) / y
            along_z = (math.copysign(HALF_Z, z) - drone[2]) / z
            distances[i, j] = min(along_x, min(along_y, along_z))


@compiled
def to_ball(ball: Array, radius: float, drone: Array, matrix: Array, directions: Array, distances: Array) -> None:
    """Shorten the rays that meet a ball; only those that point to the rectangle around it are tried."""
    x, y, z = ball[0] - drone[0], ball[1] - drone[1], ball[2] - drone[2]
    ahead = matrix[0, 0] * x + matrix[1, 0] * y + matrix[2, 0] * z
    left = matrix[0, 1] * x + matrix[1, 1] * y + matrix[2, 1] * z
    up = matrix[0, 2] * x + matrix[1, 2] * y + matrix[2, 2] * z
    square = ahead * ahead + left * left + up * up
    if square <= radius * radius:
        return  # inside a ball there is nothing to see; the episode is over
    half = math.asin(radius / math.sqrt(square))
    height = math.atan2(up, math.hypot(ahead, left))
    top, bottom = rows_between(height + half, height - half, _MIDDLE_ROW, HEIGHT)
    first, last = 0, WIDTH - 1
    if abs(height) + half < math.pi / 2 - 1e-6:  # else the ball is above or below, in every direction at once
        side = math.atan2(left, ahead)
        width = math.asin(min(1.0, math.sin(half) / math.cos(height)))
        first, last = rows_between(side + width, side - width, _MIDDLE_COLUMN, WIDTH)
        if side + width > math.pi or side - width < -math.pi:
            first, last = 0, WIDTH - 1
    for i in range(top, bottom + 1):
        for j in range(first, last + 1):
            along = directions[i, j, 0] * ahead + directions[i, j, 1] * left + directions[i, j, 2] * up
            inside = radius * radius - (square - along * along)
            if along > 0.0 and inside >= 0.0:
                distances[i, j] = min(distances[i, j], along - math.sqrt(inside))


@compiled
def rows_between(high: float, low: float, middle: int, count: int) -> tuple[int, int]:
    """First and last row (or column) whose angle lies between two angles, and one more on each side."""
    first = middle - math.ceil(high / SPACING) - 1
    last = middle - math.floor(low / SPACING) + 1
    return max(0, int(first)), min(count - 1, int(last))


@compiled
def to_tree(tree: Array, radius: float, drone: Array, ground: Array, distances: Array) -> None:
    """Shorten the rays that meet a tree: an upright cylinder from floor to ceiling."""
    to_x, to_y = tree[0] - drone[0], tree[1] - drone[1]
    square = to_x * to_x + to_y * to_y
    outside = square - radius * radius
    if outside <= 0.0:
        return
    for i in range(HEIGHT):
        for j in range(WIDTH):
            x, y = ground[0, i, j], ground[1, i, j]
            along = x * to_x + y * to_y
            flat = x * x + y * y
            inside = along * along - flat * outside
            if along > 0.0 and inside >= 0.0:
                distances[i, j] = min(distances[i, j], (along - math.sqrt(inside)) / flat)


@compiled
def feel_rows(scene: Scene, mask: Array, vector: Array) -> None:
    """The ten numbers of the rows in `mask`: way to the waypoint, velocity, attitude.

    The first six are in the heading frame: x where the nose points over the ground, y to its left, z up. The
    quaternion is the one of the two equal ones with w ≥ 0.
    """
    matrix = np.empty((3, 3))
    for k in range(mask.shape[0]):
        if not mask[k]:
            continue
        drone = scene.drone[k]
        rotation(drone, matrix)
        length = math.hypot(matrix[0, 0], matrix[1, 0])
        cos, sin = (matrix[0, 0] / length, matrix[1, 0] / length) if length > 0.0 else (1.0, 0.0)
        vector[k, 0] = -(cos * drone[0] + sin * drone[1])
        vector[k, 1] = sin * drone[0] - cos * drone[1]
        vector[k, 2] = -drone[2]
        vector[k, 3] = cos * drone[VELOCITY] + sin * drone[VELOCITY + 1]
        vector[k, 4] = cos * drone[VELOCITY + 1] - sin * drone[VELOCITY]
        vector[k, 5] = drone[VELOCITY + 2]
        sign = 1.0 if drone[ATTITUDE] >= 0.0 else -1.0
        for n in range(4):
            vector[k, 6 + n] = sign * drone[ATTITUDE + n]
