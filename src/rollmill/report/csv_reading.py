"""Reading the numbers of a run folder, also while they are written or after they were cut short."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


def read_columns(file: Path, names: Sequence[str]) -> dict[str, Column]:
    """The named columns of a CSV file as numbers, NaN where one is empty or damaged; empty if there is no such file.

    A row that ends early, as the last one of a killed process may, is left out.
    """
    rows: list[list[float]] = []
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as lines:
            # a NUL, as a power cut leaves it, would stop the reader
            reader = csv.reader(line.replace("\0", "") for line in lines)
            header = next(reader, [])
            places = [header.index(name) if name in header else None for name in names]
            rows = [
                [math.nan if place is None else _number(row[place]) for place in places]
                for row in reader
                if len(row) == len(header)
            ]
    except (OSError, csv.Error):
        pass  # the rows read so far are kept; a missing file has no rows
    table = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    return {name: table[:, place] for place, name in enumerate(names)}


def known(value: Any) -> float | None:
    """The number that a JSON file gives; None for anything else, for NaN and for values too large for a chart."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's whole numbers have no bounds
        return None
    return number if math.isfinite(number) else None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
