"""The folder of an evaluation, its statistics and its table.

`episodes.csv` grows with every episode, `evaluation.json` has the state; `closing_table` shows the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import amount, clock, count, some
from rollmill.persist.writing import AppendedFile, to_json, write_atomically
from rollmill.play.playing import Played
from rollmill.play.recorder import Recording
from rollmill.seeding import generator

COLUMNS = "player,episode,seed,return,length,terminated,truncated,seconds"
REWRITE_SECONDS = 2.0  # between two versions of evaluation.json
MOST_RESAMPLED = 1000  # episodes up to which the interval is drawn while more are being played
MOST_FAILURES = 20  # that are listed in words
RESAMPLES = 10_000
CONFIDENCE = 0.95
KINDS = {"trajectories": ("*.npz", "trajectory", "trajectories"), "video": ("*.mp4", "video", "videos")}
_CHUNK = 4_000_000  # numbers drawn at once


class EvaluationFolder:
    """Writes what was played as soon as it is known, so that a kill loses nothing but the running episodes."""

    def __init__(self, recording: Recording, facts: Mapping[str, Any], players: list[str], seed: int) -> None:
        self.recording = recording
        self.folder = recording.folder
        self._facts, self._seed = dict(facts), seed
        self._players = players
        self.played: dict[str, dict[int, Played]] = {player: {} for player in players}
        self.failures: list[str] = []
        self._failed = 0
        self._begun = self._written = perf_counter()
        self._rows = AppendedFile(self.folder / "episodes.csv")
        self._rows.write(COLUMNS + "\n")
        self.write("running")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return perf_counter() - self._begun

    def add(self, player: str, played: Played) -> None:
        """An episode is over."""
        if played.failure:
            self._failed += 1
            text = f"{player}, episode {played.episode.number}: {played.failure}"
            self.failures = [*self.failures, text][:MOST_FAILURES]
            return
        self.played[player][played.episode.number] = played
        self._rows.write(_line(player, played))
        if perf_counter() - self._written > REWRITE_SECONDS:
            self.write("running")

    def note(self, **facts: Any) -> None:
        """Something else that `evaluation.json` is to hold."""
        self._facts.update(facts)

    def keep(self, player: str, count: int) -> None:
        """Drop the episodes of a player from number `count` on, and their files: more were begun than wanted."""
        for number in [number for number in self.played[player] if number >= count]:
            del self.played[player][number]
        # also those of episodes that a worker had finished when the reader was gone
        for file in self.recording.files_from(count):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def finish(self, status: str) -> dict[str, Any]:
        """Put the rows in order, whichever worker played them, and close; the final record."""
        self._rows.close()
        rows = [_line(player, one) for player in self._players for _, one in sorted(self.played[player].items())]
        write_atomically(self.folder / "episodes.csv", COLUMNS + "\n" + "".join(rows))
        return self.write(status)

    def write(self, status: str) -> dict[str, Any]:
        """Rewrite evaluation.json."""
        self._written = perf_counter()
        first, *others = self._players
        baselines = {player: self._summary(player, status) for player in others if self.played[player]}
        record = {
            "status": status,
            "player": first,
            **self._summary(first, status),
            "baselines": baselines,
            "failed": {"episodes": self._failed, "messages": self.failures},
            **self._facts,
            "seconds": round(self.seconds, 3),
            "files": {name: len(list((self.folder / name).glob(kind))) for name, (kind, _, _) in KINDS.items()},
        }
        write_atomically(self.folder / "evaluation.json", to_json(record, indent=2) + "\n")
        return record

    def _summary(self, player: str, status: str) -> dict[str, Any]:
        played = self.played[player]
        has_interval = status != "running" or len(played) <= MOST_RESAMPLED
        return summarise([played[number] for number in sorted(played)], self._seed, has_interval)


def _line(player: str, played: Played) -> str:
    name = f'"{player}"' if "," in player else player
    flags = f"{int(played.terminated)},{int(played.truncated)}"
    numbers = f"{played.episode.number},{played.episode.seed},{played.total!r},{played.length}"
    return f"{name},{numbers},{flags},{played.seconds:.4f}\n"


def summarise(played: Sequence[Played], seed: int, has_interval: bool = True) -> dict[str, Any]:
    """The record of one player: episodes, their return with its interval, their length; None where none was played."""
    returns = np.array([one.total for one in played])
    lengths = np.array([one.length for one in played])
    if not played:
        nothing = dict.fromkeys(("mean", "std", "median", "min", "max", "low", "high", "length"))
        return {"episodes": 0, "steps": 0, **nothing}
    low, high = bootstrap_interval(returns, seed) if has_interval else (None, None)
    return {
        "episodes": len(played),
        "steps": int(lengths.sum()),
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if len(played) > 1 else None,
        "median": float(np.median(returns)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "low": low,
        "high": high,
        "length": float(lengths.mean()),
    }


def bootstrap_interval(values: NDArray[np.float64], seed: int) -> tuple[float | None, float | None]:
    """The percentile bootstrap of the mean: its 95 % interval over 10 000 resamples; None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None, None
    rng = generator(seed, "bootstrap")
    means = np.empty(RESAMPLES)
    step = max(1, _CHUNK // count)
    for start in range(0, RESAMPLES, step):
        part = means[start : start + step]
        part[:] = values[rng.integers(count, size=(len(part), count))].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def closing_table(record: Mapping[str, Any], folder: Path) -> list[str]:
    """The player and below it the baselines, best first; then what was left in the folder."""
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
    files = [f"{number} {KINDS[kind][1 if number == 1 else 2]}" for kind, number in record["files"].items() if number]
    remarks["files"] = f"{folder}" + (f" ({', '.join(files)})" if files else "")
    return remarks
