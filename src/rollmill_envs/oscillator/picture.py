"""An ensemble as a picture, drawn with nothing but numpy: fast enough for every frame of a video."""

from __future__ import annotations

import numpy as np

from rollmill.types import Array
from rollmill_envs.oscillator.stimulus import Floats

SIDE = 240  # pixels of each of the two halves
_PAPER, _FRAME, _GRID = (255, 255, 255), (138, 147, 166), (226, 230, 238)
_X_INK, _Y_INK, _NEURON, _MEAN = (37, 99, 235), (217, 119, 6), (31, 36, 48), (220, 38, 38)
_REACH = 2.5  # the axes go from − this to + this
_MARGIN = 8


def draw_ensemble(fields: Floats, state: Floats, strength: float) -> Array:
    """Left: the means of x (blue) and y (orange) over the window, and the action (−1…1) as a bar; right: x against y.

    `fields` is [2, window], `state` [variables, N]; the mean of the neurons is the red square.
    """
    picture = np.full((SIDE, 2 * SIDE, 3), _PAPER, np.uint8)
    left, right = picture[:, :SIDE], picture[:, SIDE:]
    reach = max(_REACH, float(np.abs(fields).max()) * 1.1)
    for half in (left, right):
        half[SIDE // 2, _MARGIN:-_MARGIN] = _GRID
    _trace(left, fields[1], reach, _Y_INK)
    _trace(left, fields[0], reach, _X_INK)
    _bar(left, strength)

    right[_MARGIN:-_MARGIN, SIDE // 2] = _GRID
    right[_pixel(-state[1], reach), _pixel(state[0], reach)] = _NEURON
    row, column = _pixel(-fields[1, -1:], reach)[0], _pixel(fields[0, -1:], reach)[0]
    right[row - 3 : row + 4, column - 3 : column + 4] = _MEAN
    for half in (left, right):
        half[[0, -1]] = _FRAME
        half[:, [0, -1]] = _FRAME
    return picture


def _pixel(value: Floats, reach: float) -> Array:
    """Where a value between ± reach lies between the margins."""
    share = np.clip((value + reach) / (2 * reach), 0.0, 1.0)
    return (_MARGIN + share * (SIDE - 1 - 2 * _MARGIN)).astype(np.int64)


def _trace(half: Array, values: Floats, reach: float, ink: tuple[int, int, int]) -> None:
    """A curve, two pixels thick, with its gaps closed from column to column."""
    columns = np.arange(_MARGIN, SIDE - _MARGIN)
    places = (columns - _MARGIN) * ((len(values) - 1) / (len(columns) - 1))
    rows = _pixel(-np.interp(places, np.arange(len(values)), values), reach)
    before = np.concatenate([rows[:1], rows[:-1]])
    height = np.arange(SIDE)[:, None]
    inked = (height >= np.minimum(rows, before)) & (height <= np.maximum(rows, before) + 1)
    half[:, _MARGIN : SIDE - _MARGIN][inked] = ink


def _bar(half: Array, strength: float) -> None:
    """The action, from the middle upwards or downwards, at the right edge."""
    middle = SIDE // 2
    end = middle - round(strength * (middle - _MARGIN))
    half[min(middle, end) : max(middle, end) + 1, -_MARGIN + 1 : -2] = _MEAN
