"""Pictures of episodes as mp4 files: one frame per decision, plus the one that shows how it ended.

The file is fragmented while it is written, so that one which was cut short plays up to there, and becomes an ordinary
mp4 when it is closed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.errors import Refused, RollmillError
from rollmill.persist.writing import DraftFile
from rollmill.types import Array

GRID_SIZE = 1920, 1080  # pixels that a grid has at most
DIMMED = 0.35  # brightness of an episode that is over while others continue
_FRAGMENT_SECONDS = 2  # so much is lost at most when the file is cut


def require_av() -> Any:
    """PyAV, which only this extra needs."""
    try:
        import av
    except ImportError as error:
        raise Refused("--video needs the extra 'video': pip install \"rollmill[video]\"") from error
    return av


class VideoFile:
    """An mp4 that grows picture by picture: H.264, or MPEG-4 where this build of PyAV lacks it."""

    def __init__(self, path: Path, rate: float) -> None:
        self._av = require_av()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = DraftFile(path)
        self._rate = Fraction(rate).limit_denominator(1000)
        self._container: Any = None
        self._stream: Any = None

    def add(self, picture: Array) -> None:
        """Append a picture, uint8 [H, W, 3]; all have the size of the first."""
        if self._container is None:
            self._open(*picture.shape[:2])
        elif picture.shape[:2] != (self._stream.height, self._stream.width):
            raise RollmillError(f"{self._file.path.name}: the picture changed its size to {picture.shape[:2]}")
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what is left and give the file its name."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._file.publish()

    def discard(self) -> None:
        """Remove the unfinished file."""
        if self._container is not None:
            self._container.close()
        self._file.discard()

    def _open(self, height: int, width: int) -> None:
        options = {"movflags": "hybrid_fragmented", "flush_packets": "1"}
        self._container = self._av.open(str(self._file.draft), "w", format="mp4", options=options)
        has_h264 = "libx264" in self._av.codecs_available
        settings = {"preset": "veryfast", "crf": "24"} if has_h264 else {"qscale": "3"}
        self._stream = self._container.add_stream("libx264" if has_h264 else "mpeg4", self._rate, settings)
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        self._stream.codec_context.gop_size = max(1, math.ceil(_FRAGMENT_SECONDS * self._rate))
        self._stream.codec_context.max_b_frames = 0  # they would delay the first picture
        self._stream.codec_context.thread_count = 1  # the cores are busy playing


def write_grid(videos: Sequence[Path], path: Path) -> None:
    """All the videos side by side in one; those that are over stop and are dimmed until the last one is."""
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(_Source(video))) for video in videos]
        columns = math.ceil(math.sqrt(len(sources)))
        rows = math.ceil(len(sources) / columns)
        height, width = sources[0].size
        scale = min(1.0, GRID_SIZE[0] / (columns * width), GRID_SIZE[1] / (rows * height))
        height, width = (max(2, int(side * scale) // 2 * 2) for side in (height, width))  # a codec needs even ones
        target = VideoFile(path, float(sources[0].rate))
        stack.callback(target.discard)  # does nothing to a file that has its name
        canvas = np.zeros((rows * height, columns * width, 3), np.uint8)
        while sum(source.advance(width, height) for source in sources):  # every source advances, unlike with any()
            for place, source in enumerate(sources):
                top, left = place // columns * height, place % columns * width
                canvas[top : top + height, left : left + width] = source.picture
            target.add(canvas)
        target.finish()


class _Source:
    """A video that is read picture by picture."""

    def __init__(self, path: Path) -> None:
        self._container = require_av().open(str(path))
        self.rate: Fraction = self._container.streams.video[0].average_rate
        self.size: tuple[int, int] = (self._container.streams.video[0].height, self._container.streams.video[0].width)
        self._frames: Iterator[Any] = self._container.decode(video=0)
        self._is_over = False
        self.picture: Array = np.zeros((0, 0, 3), np.uint8)

    def advance(self, width: int, height: int) -> bool:
        """Show the next picture; False when there is none, and the last is dimmed."""
        frame = None if self._is_over else next(self._frames, None)
        if frame is not None:
            self.picture = frame.to_ndarray(format="rgb24", width=width, height=height)
            return True
        if not self._is_over:
            self.picture = (self.picture * DIMMED).astype(np.uint8)
            self._is_over = True
        return False

    def close(self) -> None:
        self._container.close()
