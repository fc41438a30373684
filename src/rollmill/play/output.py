"""The folder of an evaluation: `episodes.csv` grows with every episode, `evaluation.json` has its state."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.errors import Refused
from rollmill.persist.writing import AppendedFile, to_json, write_atomically
from rollmill.play.playing import Played
from rollmill.play.recorder import Recording
from rollmill.play.statistics import summarise

COLUMNS = "player,episode,seed,return,length,terminated,truncated,seconds"
REWRITE_SECONDS = 2.0  # between two versions of evaluation.json
MOST_RESAMPLED = 1000  # episodes up to which the interval is drawn while more are being played
MOST_FAILURES = 20  # that are listed in words


def make_folder(given: Path | None, above: Path, stem: str) -> Path:
    """The folder to write to: the one given if it is new or empty, otherwise one named by the time of day."""
    if given is not None:
        if given.exists() and not (given.is_dir() and not any(given.iterdir())):
            raise Refused(f"--out {given} exists and is not empty; choose another folder")
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"--out {given} can't be made: {error.strerror}; choose another folder") from error
        return given
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{stem}{time.strftime('%Y%m%d-%H%M%S')}").strip("-").lower()
    for attempt in range(1000):
        path = above / (f"{name}-{attempt}" if attempt else name)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise Refused(f"{path} can't be made: {error.strerror}; choose a folder with --out") from error
        return path
    raise Refused(f"{above} is full of evaluations of this second; choose a folder with --out")


class Output:
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
        self._rows.write(_row(player, played))
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
        rows = [_row(player, one) for player in self._players for _, one in sorted(self.played[player].items())]
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
            "files": self._files(),
        }
        write_atomically(self.folder / "evaluation.json", to_json(record, indent=2) + "\n")
        return record

    def _summary(self, player: str, status: str) -> dict[str, Any]:
        played = self.played[player]
        has_interval = status != "running" or len(played) <= MOST_RESAMPLED
        return summarise([played[number] for number in sorted(played)], self._seed, has_interval)

    def _files(self) -> dict[str, int]:
        """How many files of each kind there are."""
        kinds = {"trajectories": "*.npz", "video": "*.mp4"}
        return {name: len(list((self.folder / name).glob(kind))) for name, kind in kinds.items()}


def _row(player: str, played: Played) -> str:
    name = f'"{player}"' if "," in player else player
    flags = f"{int(played.terminated)},{int(played.truncated)}"
    numbers = f"{played.episode.number},{played.episode.seed},{played.total!r},{played.length}"
    return f"{name},{numbers},{flags},{played.seconds:.4f}\n"
