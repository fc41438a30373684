"""What the drone sees and feels, against a slow plain-Python reference; and the camera, which is neither."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill_envs.dodgeball.arena import ATTITUDE


def turned(quaternion, vector):
    """q v q*, by the product of quaternions."""

    def product(a, b):
        return (
            a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
            a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
            a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
            a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
        )

    w, x, y, z = quaternion
    return product(product(quaternion, (0.0, *vector)), (w, -x, -y, -z))[1:]


def reference_distance(place, ray, balls, trees):
    """How far one ray goes: walls, then every ball and tree, none left out."""
    found = []
    for p, r, half in zip(place, ray, (7.5, 7.5, 4.5), strict=True):
        if r != 0:
            found.append(max((half - p) / r, (-half - p) / r))
    for ball in balls:
        to = [b - p for b, p in zip(ball[:3], place, strict=True)]
        # |s ray - to|² = r²
        b, c = sum(t * r for t, r in zip(to, ray, strict=True)), sum(t * t for t in to) - 0.25**2
        if ball[6] and b > 0 and b * b >= c:
            found.append(b - math.sqrt(b * b - c))
    for tree in trees:
        x, y = tree[0] - place[0], tree[1] - place[1]
        a, b, c = ray[0] ** 2 + ray[1] ** 2, x * ray[0] + y * ray[1], x * x + y * y - 0.3**2
        if b > 0 and b * b >= a * c:
            found.append((b - math.sqrt(b * b - a * c)) / a)
    return min(found)


def reference_image(scene, k):
    image = np.empty((19, 33), int)
    quaternion = scene.drone[k, ATTITUDE : ATTITUDE + 4].tolist()
    for i in range(19):
        for j in range(33):
            up, left = math.radians(3.75 * (9 - i)), math.radians(3.75 * (16 - j))
            ahead = (math.cos(up) * math.cos(left), math.cos(up) * math.sin(left), math.sin(up))
            ray = turned(quaternion, ahead)
            distance = reference_distance(
                scene.drone[k, :3].tolist(), ray, scene.balls[k].tolist(), scene.trees[k].tolist()
            )
            image[i, j] = math.floor(min(255.0, 255 * distance / 15) + 0.5)
    return image


@pytest.mark.parametrize("env_id", ["dodgeball/box", "dodgeball/forest"])
def test_the_ray_image_is_that_of_a_slow_reference(env_id):
    size = 12
    group = make_group(EnvConfig(id=env_id, args={"launchers": 4}), size)
    everyone = np.ones(size, bool)
    group.reset(everyone, np.arange(size))
    generator = np.random.default_rng(0)
    scene = group.scene
    scene.drone[:, ATTITUDE : ATTITUDE + 4] = generator.normal(size=(size, 4))  # upside down as well
    scene.drone[:, ATTITUDE : ATTITUDE + 4] /= np.linalg.norm(scene.drone[:, ATTITUDE : ATTITUDE + 4], axis=1)[:, None]
    scene.drone[:4, ATTITUDE : ATTITUDE + 4] = 1, 0, 0, 0
    # balls near and far, in every direction, most of them in the air
    offset = generator.normal(size=scene.balls[:, :, :3].shape)
    offset *= generator.uniform(0.4, 6, (*offset.shape[:2], 1)) / np.linalg.norm(offset, axis=2)[:, :, None]
    scene.balls[:, :, :3] = scene.drone[:, None, :3] + offset
    scene.balls[:, :, 6] = generator.random(scene.balls.shape[:2]) < 0.8
    group._look(everyone)
    empty = 0
    for k in range(size):
        expected = reference_image(scene, k)
        np.testing.assert_array_equal(group.obs["rays"][k, 0], expected)
        scene.balls[k, :, 6] = 0
        empty += (reference_image(scene, k) != expected).sum()
    assert empty > 300  # balls were seen


def test_straight_ahead_is_the_middle_pixel_left_is_left_and_up_is_up():
    group = make_group(EnvConfig(id="dodgeball/box", args={"launchers": 1}), 1)
    group.reset(np.ones(1, bool), np.zeros(1, int))
    group.scene.drone[0] = 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    group._look(np.ones(1, bool))
    image = group.obs["rays"][0, 0].copy()
    assert image[9, 16] == 128  # 7.5 m of 15: 127.5, rounded up
    assert image[9, 0] == image[9, 32] == 147  # 60° aside the side wall is at 7.5 / sin 60° = 8.660 m: 147.2
    # 2 m away at 30° to the left and up by 15°: column 16 - 8, row 9 - 4; its near side is at 1.75 m: 29.75
    up, left = math.radians(15), math.radians(30)
    place = np.array([math.cos(up) * math.cos(left), math.cos(up) * math.sin(left), math.sin(up)]) * 2
    group.scene.balls[0, 0] = [*place, 0, 0, 0, 1]
    group._look(np.ones(1, bool))
    assert group.obs["rays"][0, 0, 5, 8] == 30
    changed = np.argwhere(group.obs["rays"][0, 0] != image)
    # half its width is asin(0.25 / 2) = 7.2°, not quite two pixels
    assert changed.min(0).tolist() == [4, 7]
    assert changed.max(0).tolist() == [6, 9]


def test_the_vector_is_waypoint_and_velocity_in_the_heading_frame_and_the_attitude():
    group = make_group(EnvConfig(id="dodgeball/box", args={"rays": False}), 1)
    group.reset(np.ones(1, bool), np.zeros(1, int))
    half = math.sqrt(0.5)
    # turned to the left by 90°: the nose points along y; given as the quaternion with w < 0
    group.scene.drone[0] = 1, 2, 3, 4, 5, 6, -half, 0, 0, -half, 0, 0, 0
    group._look(np.ones(1, bool))
    # the waypoint is at (-1, -2, -3): 2 behind, 1 to the left of the nose
    np.testing.assert_allclose(group.obs[0], [-2, 1, -3, 5, -4, 6, half, 0, 0, half], rtol=1e-6, atol=1e-6)


def played(args, steps=60, env_id="dodgeball/box"):
    group = make_group(EnvConfig(id=env_id, args=args), 2, pictures=True)
    group.reset(np.ones(2, bool), np.array([3, 4]))
    draw = np.random.default_rng(0)
    for t in range(steps):
        thrust = 2 if t % 4 else 1  # stays in the air
        action = np.array([[1, 1, thrust, draw.integers(3)]] * 2)
        group.step(action, ~group.scene.ended)
    return group


def test_the_camera_is_independent_of_the_rays_and_changes_nothing():
    seeing, blind = played({}), played({"rays": False})
    before = seeing.snapshot(0)
    picture = seeing.render(0)
    assert (picture.shape, picture.dtype.name) == ((240, 320, 3), "uint8")
    np.testing.assert_array_equal(picture, blind.render(0))
    np.testing.assert_array_equal(picture, seeing.render(0))
    assert seeing.snapshot(0) == before
    assert (picture != seeing.render(1)).any()


def count(picture, is_colour):
    red, green, blue = (picture[..., channel].astype(int) for channel in range(3))
    return int(is_colour(red, green, blue).sum())


def test_the_picture_shows_drone_ball_waypoint_and_trees():
    group = played({"launchers": 1}, steps=1)
    group.scene.drone[0] = -3, 0, 0.2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    without = group.render(0)
    group.scene.balls[0, 0] = 0.5, 1.5, 0.5, 0, 0, 0, 1
    with_ball = group.render(0)

    def orange(red, green, blue):
        return (red > 150) & (blue < 60) & (green > 70)

    # it is 6.45 m + ahead of the camera; a radius of 0.25 m is some 8 pixels there
    assert count(without, orange) == 0
    assert 100 < count(with_ball, orange) < 400
    _, columns = np.nonzero(np.abs(with_ball.astype(int) - without).sum(2) > 100)
    assert columns.mean() < 160  # it is to the left
    assert count(without, lambda red, green, blue: (red > 180) & (green < 90)) > 30  # front rotors
    assert count(without, lambda red, green, blue: green > red + 30) > 300  # around the waypoint
    forest = played({}, 1, "dodgeball/forest")
    assert count(forest.render(0), lambda red, green, blue: (red > blue + 40) & (red < 150)) > 300
