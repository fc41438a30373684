"""Pictures on a terminal: two pixels per character, in 24-bit colour."""

from __future__ import annotations

import os
from typing import TextIO

import numpy as np
from PIL import Image

from rollmill.play.watch_screen import WatchFrame
from rollmill.types import Array

# another screen, so that the terminal's content comes back afterwards; the cursor is hidden meanwhile
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
HOME, CLEAR, PLAIN, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[2J", "\x1b[0m", "\x1b[K", "\x1b[J"
HALF = "▀"  # its colour is the upper pixel, the background the lower one


class TerminalScreen:
    """Draws frames as large as the terminal allows, with a line of text below."""

    most_per_second = 20.0  # a picture is some 50 kB of text
    is_watched = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._size: tuple[int, int] | None = None  # None while the terminal is not ours

    def show(self, frame: WatchFrame) -> None:
        """Draw the picture and its caption."""
        self._draw(frame.picture, frame.caption())

    def say(self, text: str) -> None:
        """One line of text."""
        self._draw(None, text)

    def close(self) -> None:
        """Give the terminal back."""
        if self._size is not None:
            self._size = None
            self._stream.write(LEAVE)
            self._stream.flush()

    def _draw(self, picture: Array | None, text: str) -> None:
        columns, lines = size = _terminal_size(self._stream)
        pieces = [HOME]
        if size != self._size:
            pieces.insert(0, ENTER if self._size is None else CLEAR)
            self._size = size
        if picture is not None and lines > 1:
            rows = half_blocks(fitted(picture, columns, 2 * (lines - 1)))
            pieces += [f"{row}{PLAIN}{REST_OF_LINE}\r\n" for row in rows]
        pieces.append(f"{PLAIN}{text[: columns - 1]}{REST_OF_LINE}{REST_OF_SCREEN}")
        self._stream.write("".join(pieces))
        self._stream.flush()


def fitted(picture: Array, width: int, height: int) -> Array:
    """The picture as large as fits into width × height pixels, its shape kept; merged pixels are averaged."""
    scale = min(width / picture.shape[1], height / picture.shape[0])
    columns = min(width, max(1, round(picture.shape[1] * scale)))
    rows = min(height, max(2, round(picture.shape[0] * scale)))
    return np.asarray(Image.fromarray(picture).resize((columns, rows), Image.Resampling.BOX))


def half_blocks(picture: Array) -> list[str]:
    """Lines of characters, two rows of pixels each; a colour is named only where it changes."""
    if picture.shape[0] % 2:
        picture = np.concatenate([picture, np.zeros_like(picture[:1])])
    lines = []
    for upper, lower in zip(picture[0::2].tolist(), picture[1::2].tolist(), strict=True):
        line, before = [], None
        for top, bottom in zip(upper, lower, strict=True):
            if (top, bottom) != before:
                before = (top, bottom)
                line.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*top, *bottom))
            line.append(HALF)
        lines.append("".join(line))
    return lines


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines now; a terminal that doesn't know its size is taken for 80 × 24."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, lines = 0, 0
    return (columns or 80), (lines or 24)
