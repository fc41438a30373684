"""How several runs come along, a row for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rollmill.console.view import View
from rollmill.observe.phrases import amount, clock, count
from rollmill.trials.seeds_folder import SeedsFolder


def seeds_view(folder: SeedsFolder, counted: str, target: int) -> View:
    """A bar for each seed, or a line for each that is under way: what the newest row of its metrics says.

    It is done when `counted`, its env_steps or updates, reaches `target`.
    """
    rows = [_row(seed, status, counted, target, folder.run(seed)) for seed, status in folder.status.items()]
    unit = counted.removeprefix("env_")
    lines = [
        f"{seed}  {percent}  {steps} {unit}  ETA {left}  return {score}  {rate} steps/s"
        for seed, status, fraction, percent, steps, score, rate, left in rows
        if status == "running" and fraction
    ]
    return View(rows, lines, ("", "", "", "", unit, "return", "steps/s", "ETA"))


def _row(
    seed: int, status: str, counted: str, target: int, run: Path
) -> tuple[str, str, float, str, str, str, str, str]:
    newest = {} if status == "waiting" else _last_metrics(run / "metrics.jsonl")
    done = min(newest.get(counted) or 0, target)
    rate = newest.get("steps_per_second") if status == "running" else None
    # at the mean speed so far; updates have no rate of their own
    left = (target - done) * newest["seconds"] / done if rate and done else None
    percent, progress = f"{done / target * 100:3.0f}%", f"{count(done)}/{count(target)}"
    score = amount(newest.get("return_ema"))
    return f"seed {seed}", status, done / target, percent, progress, score, count(rate), clock(left)


def _last_metrics(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, os.fstat(lines.fileno()).st_size - 8192))
            *_, newest, _ = lines.read().split(b"\n")  # after the last line break there is nothing, or half a row
        row = json.loads(newest)
    except (OSError, ValueError):  # not there yet
        return {}
    return row if isinstance(row, dict) else {}
