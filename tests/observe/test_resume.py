"""Files of a run that was killed and resumed read as if nothing had happened."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.console.standard import default_observers
from rollmill.events import Checkpointing, EpisodesEnded, Event, Progress, Stopped
from rollmill.observe.config import ObserveConfig
from rollmill.persist.rewind import last_episodes, trim

TABLES = ("metrics.jsonl", "metrics.csv", "episodes.csv")


def feed(run: Path, events: list[Event], interval: float = 0.0, closes: bool = True) -> None:
    run.mkdir(exist_ok=True)
    observers = default_observers(run, ObserveConfig(console="none", curve=False, log_interval=interval))
    for observer in observers:
        for event in events:
            observer.receive(event)
        if closes:
            observer.close()


def with_checkpoint(events: list[Event], update: int) -> list[Event]:
    place = next(n for n, event in enumerate(events) if event.progress.updates == update + 1)
    return [*events[:place], Checkpointing(events[place - 1].progress), *events[place:]]


def tables(run: Path) -> dict[str, str]:
    return {name: (run / name).read_text() for name in TABLES}


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stored = EventAccumulator(str(run / "tensorboard")).Reload()
    return {
        tag: [(point.step, point.value) for point in stored.Scalars(tag)] for tag in sorted(stored.Tags()["scalars"])
    }


def tear(run: Path) -> None:
    """Leave half a line or record at the end of every file, as a kill does."""
    for path in (*(run / name for name in TABLES), *(run / "tensorboard").iterdir(), *(run / "logs").iterdir()):
        content = path.read_bytes()
        last = content.splitlines()[-1]
        path.write_bytes(content + last[: len(last) // 2])


@pytest.mark.parametrize("interval", [0.0, 3.0])
@pytest.mark.parametrize("killed", [5, 6, 9, 60])
def test_after_kill_and_resume_the_files_equal_those_of_an_undisturbed_run(
    tmp_path: Path, run_events, interval: float, killed: int
) -> None:
    events = with_checkpoint(run_events(updates=60), 5)
    feed(tmp_path / "whole", events, interval)

    run = tmp_path / "killed"
    feed(run, [e for e in events if e.progress.updates <= killed and not isinstance(e, Stopped)], interval, False)
    tear(run)
    trim(run, 500)
    start = replace(events[0], progress=next(e.progress for e in events if isinstance(e, Checkpointing)))
    feed(run, [start, *(e for e in events if e.progress.updates > 5)], interval)

    assert tables(run) == tables(tmp_path / "whole")
    assert points(run) == points(tmp_path / "whole")
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, tmp_path / "whole")]
    assert summaries[0]["returns"] == summaries[1]["returns"]


def test_logs_stay_whole_and_tell_of_the_resume_on_a_line_of_its_own(tmp_path: Path, run_events) -> None:
    events = run_events(updates=4)
    feed(tmp_path, events[:7], closes=False)
    log = tmp_path / "logs" / "run.log"
    log.write_text(log.read_text() + "2026-01-01 torn")
    before = log.read_text()
    trim(tmp_path, 200)
    feed(tmp_path, [replace(events[0], progress=events[4].progress)])
    assert log.read_text().startswith(before + "\n")
    assert "ppo on Counting-v0\n    continues after update 2, 200 steps\n" in log.read_text().removeprefix(before)


def test_every_cut_of_a_table_leaves_its_whole_lines(tmp_path: Path, run_events) -> None:
    feed(tmp_path, run_events(updates=3))
    for name in TABLES:
        path = tmp_path / name
        whole = path.read_bytes()
        for size in range(len(whole) + 1):
            path.write_bytes(whole[:size])
            trim(tmp_path, 200)
            lines = whole[:size].splitlines(keepends=True)
            # two updates' worth of rows, two episodes each in episodes.csv, below the header of a table
            most = {"metrics.jsonl": 2, "metrics.csv": 3, "episodes.csv": 5}[name]
            assert path.read_bytes() == b"".join([line for line in lines if line.endswith(b"\n")][:most])


def test_every_cut_of_an_event_file_leaves_its_whole_records(tmp_path: Path, run_events) -> None:
    feed(tmp_path, run_events(updates=3))
    (path,) = (tmp_path / "tensorboard").iterdir()
    whole = path.read_bytes()
    ends = [0]
    while ends[-1] < len(whole):  # 8 bytes of length, 4 and 4 of checksums
        ends.append(ends[-1] + 16 + int.from_bytes(whole[ends[-1] : ends[-1] + 8], "little"))
    assert len(ends) == 1 + 1 + 3  # the beginning, the file's version, three rows
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        trim(tmp_path, 200)
        assert path.stat().st_size == max(end for end in ends[:-1] if end <= size)
    path.write_bytes(whole + bytes(100))  # zeros, as after a power cut
    trim(tmp_path, 300)
    assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_takes_nothing_else_with_it(tmp_path: Path, run_events) -> None:
    feed(tmp_path, run_events(updates=3))
    before = tables(tmp_path)
    for name, text in before.items():
        first, second, *rest = text.splitlines(keepends=True)
        (tmp_path / name).write_text("".join([first, second, second[:9] + "\n", *rest]))
    trim(tmp_path, 300)
    assert tables(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


def test_what_needs_no_change_is_not_touched_and_what_is_missing_or_empty_is_fine(tmp_path: Path, run_events) -> None:
    trim(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
    feed(tmp_path, run_events(updates=3))
    stamps = {path: os.stat(path).st_mtime_ns for path in tmp_path.rglob("*")}
    trim(tmp_path, 300)
    assert {path: os.stat(path).st_mtime_ns for path in tmp_path.rglob("*")} == stamps
    for path in stamps:
        if path.is_file():
            path.write_bytes(b"")
    trim(tmp_path, 300)
    assert last_episodes(tmp_path).returns == ()


def test_the_past_is_the_last_hundred_episodes(tmp_path: Path, run_events) -> None:
    assert last_episodes(tmp_path) == EpisodesEnded(Progress(), (), (), ())
    feed(tmp_path, run_events(updates=600))
    past = last_episodes(tmp_path)
    # Two episodes per update: those of updates 551 to 600.
    assert past.returns == tuple(value for u in range(551, 601) for value in (10.0 * u, 10.0 * u + 2))
    assert past.lengths == (50,) * 100
    assert past.truncated == (False, True) * 50
    file = tmp_path / "episodes.csv"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:-1], lines[-1].replace("6002.0", "six")]))
    assert last_episodes(tmp_path).returns == past.returns[:-1], "a damaged row is left out"
    file.write_bytes(b"\xff" + file.read_bytes().replace(b"return", b"retorn", 1))
    assert last_episodes(tmp_path).returns == ()
