"""`rollmill clean` against real leftovers: processes that sleep, drafts whose writer has died."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Rollmill = Callable[..., Any]


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def run_folder(path: Path, pid: int) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"pid": pid, "host": platform.node()}))
    return path


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at children of this test alone: others on this machine may be killing runs of their own just now."""

    def children() -> list[int]:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]

    monkeypatch.setattr("rollmill.report.leftovers.pids", children)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dead() -> tuple[int, int]:
    """Number and start of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = start_of(child.pid)
    child.communicate()
    return child.pid, start


@pytest.fixture
def sleeper() -> Iterator[Callable[[int, int], subprocess.Popen[bytes]]]:
    """Starts a process with the mark of a run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(main: int, main_start: int) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            ["sleep", "600"], env={"ROLLMILL_RUN": f"{main}:{main_start}", "PATH": "/usr/bin:/bin"}
        )
        started.append(child)
        deadline = time.monotonic() + 5  # until it is `sleep`, it has our own environment
        while b"sleep" not in Path(f"/proc/{child.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_nothing_left_is_one_line(rollmill: Rollmill, here: Path) -> None:
    assert rollmill("clean") == (0, "nothing was left over\n", "")
    run_folder(here / "runs" / "a", os.getpid())
    assert rollmill("clean", "--remove") == (0, "nothing was left over\n", "")


def test_a_folder_that_does_not_exist_is_refused(rollmill: Rollmill, here: Path) -> None:
    line = "rollmill: clean: gone: no such folder: name a run or a folder of runs\n"
    assert rollmill("clean", "gone") == (2, "", line)


def test_a_process_of_a_dead_run_is_listed_and_killed_only_with_remove(
    rollmill: Rollmill, here: Path, dead: tuple[int, int], sleeper: Any
) -> None:
    orphan = sleeper(*dead)
    line = f"process {orphan.pid} of the dead run {dead[0]}: sleep 600\n"
    assert rollmill("clean") == (0, f"{line}1 left over; --remove removes them\n", "")
    assert orphan.poll() is None
    assert rollmill("clean", "--remove") == (0, f"removed  {line}", "")
    assert orphan.wait(5) == -9
    assert rollmill("clean").out == "nothing was left over\n"


def test_a_process_of_a_living_run_stays(rollmill: Rollmill, here: Path, sleeper: Any) -> None:
    child = sleeper(os.getpid(), start_of(os.getpid()))
    assert rollmill("clean", "--remove").out == "nothing was left over\n"
    assert child.poll() is None


def test_the_number_of_a_dead_main_process_may_belong_to_another_now(
    rollmill: Rollmill, here: Path, sleeper: Any
) -> None:
    orphan = sleeper(os.getpid(), start_of(os.getpid()) - 1)
    assert f"process {orphan.pid} of the dead run {os.getpid()}" in rollmill("clean").out


def test_a_living_run_that_was_started_below_a_dead_one_stays(
    rollmill: Rollmill, here: Path, dead: tuple[int, int], sleeper: Any
) -> None:
    by_folder, by_child = sleeper(*dead), sleeper(*dead)
    run_folder(here / "runs" / "serial", by_folder.pid)
    child = sleeper(by_child.pid, start_of(by_child.pid))
    assert rollmill("clean", "--remove").out == "nothing was left over\n"
    assert [process.poll() for process in (by_folder, by_child, child)] == [None] * 3


def test_an_orphan_whose_number_was_given_to_another_is_not_killed(dead: tuple[int, int], sleeper: Any) -> None:
    from dataclasses import replace

    from rollmill.report.leftovers import find_orphans

    child = sleeper(*dead)
    (orphan,) = find_orphans(frozenset())
    replace(orphan, start=orphan.start - 1).remove()
    replace(orphan, pid=dead[0]).remove()  # there is no such process
    time.sleep(0.1)
    assert child.poll() is None


def test_drafts_of_dead_writers_go_and_everything_else_stays(
    rollmill: Rollmill, here: Path, dead: tuple[int, int]
) -> None:
    run = run_folder(here / "runs" / "deep" / "a", dead[0])
    checkpoints = run / "checkpoints"
    drafts = [
        run / f".summary.json.{dead[0]}.tmp",
        checkpoints / f".draft-000000003-{dead[0]}",
        checkpoints / f".draft-latest-{dead[0]}",
        checkpoints / f".trash-000000001-1-{dead[0]}",
    ]
    drafts[0].write_text("{")
    for folder in (drafts[1], drafts[3]):
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(b"half")
    drafts[2].symlink_to("000000002")
    kept = [
        run / f".summary.json.{os.getpid()}.tmp",  # its writer lives
        run / f"summary.json.{dead[0]}.tmp",  # not ours: our drafts are hidden
        run / f".draft-000000003-{dead[0]}",  # not where ours are
        checkpoints / "000000002",
    ]
    for path in kept:
        path.mkdir()
    listed = rollmill("clean")
    assert listed.code == 0
    assert sorted(listed.out.splitlines()[:-1]) == sorted(
        f"draft {path.relative_to(here)} of the dead process {dead[0]}" for path in drafts
    )
    assert all(os.path.lexists(path) for path in drafts)
    assert rollmill("clean", "runs/deep", "--remove").out.count("removed  draft ") == 4
    assert not any(os.path.lexists(path) for path in drafts)
    assert all(path.is_dir() for path in kept)


@pytest.mark.parametrize("whose", ["living", "elsewhere", "unknown"])
def test_the_folder_of_a_run_that_may_live_is_left_alone(
    rollmill: Rollmill, here: Path, dead: tuple[int, int], whose: str
) -> None:
    run = run_folder(here / "runs" / "a", os.getpid() if whose == "living" else dead[0])
    draft = run / f".summary.json.{dead[0]}.tmp"
    draft.touch()
    if whose == "elsewhere":
        (run / "run.json").write_text(json.dumps({"pid": dead[0], "host": "another-machine"}))
    if whose == "unknown":
        (run / "run.json").write_text("{")
    assert rollmill("clean", "--remove").out == "nothing was left over\n"
    assert draft.exists()


def test_what_can_not_be_removed_is_reported(
    rollmill: Rollmill, here: Path, dead: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(here / "runs" / "a", dead[0])
    draft = run / f".summary.json.{dead[0]}.tmp"
    draft.touch()

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)  # root may remove anything
    line = f"kept     draft runs/a/{draft.name} of the dead process {dead[0]}: Operation not permitted\n"
    assert rollmill("clean", "--remove") == (1, line, "")


def test_what_a_dead_run_held_for_its_evaluation_is_listed_and_removed(
    rollmill: Rollmill, here: Path, dead: tuple[int, int]
) -> None:
    for name, pid in (("dead", dead[0]), ("living", os.getpid())):
        held = run_folder(here / "runs" / name, pid) / "checkpoints" / ".held-000000012"
        held.mkdir()
        (held / "state.safetensors").touch()
    assert f"draft runs/dead/checkpoints/.held-000000012 of the dead process {dead[0]}" in rollmill("clean").out
    assert rollmill("clean", "--remove").code == 0
    assert not (here / "runs/dead/checkpoints/.held-000000012").exists()
    assert (here / "runs/living/checkpoints/.held-000000012").exists()
