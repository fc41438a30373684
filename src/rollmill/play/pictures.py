"""Pictures of environments, also of those that can't be drawn, and pictures as PNG."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from rollmill import nested
from rollmill.envs.group import EnvGroup, NoPicture
from rollmill.errors import Refused
from rollmill.types import Array

CHART_HEIGHT, CHART_WIDTH = 200, 320  # pixels
BACKGROUND, AXIS, BAR = (24, 26, 31), (90, 95, 105), (95, 160, 235)


class Camera:
    """Takes pictures of the first row of a group: as the environment draws itself, else of what the agent sees."""

    def __init__(self, group: EnvGroup) -> None:
        self._group = group
        self._can_render = True
        self._largest: Array | None = None  # of every number seen so far, so that the bars keep their scale

    def take(self) -> Array:
        """The picture now, uint8 [H, W, 3]."""
        if self._can_render:
            try:
                return self._group.render(0)
            except (NoPicture, Refused):
                self._can_render = False
        leaves = [np.asarray(leaf)[0] for _, leaf in nested.leaves(self._group.obs)]
        for leaf in leaves:
            if (image := as_image(leaf)) is not None:
                return image
        return self._chart(np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves]))

    def _chart(self, values: Array) -> Array:
        values = np.nan_to_num(values)
        largest = np.maximum(np.abs(values), 1e-9)
        self._largest = largest if self._largest is None else np.maximum(self._largest, largest)
        return bar_chart(values / self._largest)


def as_image(observation: Array) -> Array | None:
    """An observation as RGB if it is an image: uint8, [H, W], [H, W, C] or stacked grey frames; else None."""
    if observation.dtype != np.uint8 or observation.ndim not in (2, 3):
        return None
    image = observation
    if image.ndim == 3:
        if image.shape[0] <= 12 < min(image.shape[1:]):  # frames or channels come first
            image = np.moveaxis(image, 0, -1)
        if image.shape[2] % 3 == 0 and image.shape[2] > 0:
            return np.ascontiguousarray(image[:, :, -3:])  # of several frames the newest
        image = image[:, :, -1]
    return np.repeat(image[:, :, None], 3, axis=2) if min(image.shape) > 1 else None


def bar_chart(values: Array) -> Array:
    """Numbers in [-1, 1] as bars up and down from the middle."""
    values = values[:CHART_WIDTH]
    picture = np.full((CHART_HEIGHT, CHART_WIDTH, 3), BACKGROUND, np.uint8)
    middle = CHART_HEIGHT // 2
    edges = np.linspace(0, CHART_WIDTH, len(values) + 1).astype(int)
    for value, left, right in zip(values, edges[:-1], edges[1:], strict=True):
        height = round(abs(float(value)) * (middle - 4))
        rows = slice(middle - height, middle) if value > 0 else slice(middle, middle + height)
        picture[rows, left : max(left + 1, right - (right - left) // 5)] = BAR
    picture[middle] = AXIS
    return picture


def png_bytes(picture: Array) -> bytes:
    """An RGB picture, uint8 [H, W, 3], as a PNG file."""
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()
