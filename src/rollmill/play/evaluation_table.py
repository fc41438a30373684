"""What is shown at the end of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import amount, clock, count, some

KINDS = {"trajectories": ("trajectory", "trajectories"), "video": ("video", "videos")}  # one, several


def closing_table(record: Mapping[str, Any], folder: Path) -> list[str]:
    """The player and beneath it the baselines, best first; then what was left in the folder."""
    baselines = sorted(record["baselines"].items(), key=lambda item: -item[1]["mean"])
    rows: list[tuple[str, ...]] = [("player", "return", "95 % interval", "median", "length", "episodes")]
    rows += [_row(name, entry) for name, entry in [(record["player"], record), *baselines]]
    title = f"{record['env']}, {record['status']} after {clock(record['seconds'])}"
    remarks = list(_remarks(record, folder).items())
    return [title, *text_table(rows, indent="  "), *text_table(remarks, left=(0, 1), indent="  ")]


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    has_interval = entry["low"] is not None
    interval = f"{amount(entry['low'])} … {amount(entry['high'])}" if has_interval else "-"
    numbers = amount(entry["mean"]), interval, amount(entry["median"]), amount(entry["length"])
    return name, *numbers, count(entry["episodes"])


def _remarks(record: Mapping[str, Any], folder: Path) -> dict[str, str]:
    remarks: dict[str, str] = {}
    if record["failed"]["episodes"]:
        first = record["failed"]["messages"][0]
        remarks["failed"] = f"{some(record['failed']['episodes'], 'episode')}, the first: {first}"
    if record.get("left_out"):
        remarks["left out"] = f"{', '.join(record['left_out'])}: no time for them"
    for name, value in (record.get("examination") or {}).items():
        if isinstance(value, int | float | str):
            remarks[name] = amount(value) if isinstance(value, float) else str(value)
    files = [f"{number} {KINDS[kind][number != 1]}" for kind, number in record["files"].items() if number]
    remarks["files"] = f"{folder}" + (f" ({', '.join(files)})" if files else "")
    return remarks
