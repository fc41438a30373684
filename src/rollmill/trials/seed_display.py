"""How several runs come along, a row for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rollmill.console.view import View
from rollmill.observe.phrases import amount, clock, count
from rollmill.trials.seeds_folder import SeedsFolder

HEAD = ("", "", "", "", "steps", "return", "steps/s", "ETA")


def seeds_view(folder: SeedsFolder, target: int) -> View:
    """A bar for each seed, or a line for each that is under way: what the newest row of its metrics says."""
    rows = [_row(seed, status, target, folder.run(seed)) for seed, status in folder.status.items()]
    lines = [
        f"{seed}  {percent}  {steps} steps  ETA {left}  return {score}  {rate} steps/s"
        for seed, status, fraction, percent, steps, score, rate, left in rows
        if status == "running" and fraction
    ]
    return View(rows, lines, HEAD)


def _row(seed: int, status: str, target: int, run: Path) -> tuple[str, str, float, str, str, str, str, str]:
    newest = {} if status == "waiting" else _last_metrics(run / "metrics.jsonl")
    steps = min(newest.get("env_steps") or 0, target)
    rate = newest.get("steps_per_second") if status == "running" else None
    left = (target - steps) / rate if rate else None
    percent, progress = f"{steps / target * 100:3.0f}%", f"{count(steps)}/{count(target)}"
    score = amount(newest.get("return_ema"))
    return f"seed {seed}", status, steps / target, percent, progress, score, count(rate), clock(left)


def _last_metrics(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, os.fstat(lines.fileno()).st_size - 8192))
            *_, newest, _ = lines.read().split(b"\n")  # after the last line break there is nothing, or half a row
        row = json.loads(newest)
    except (OSError, ValueError):  # not there yet
        return {}
    return row if isinstance(row, dict) else {}
