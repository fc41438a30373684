"""When a checkpoint is due, which are kept, and that no kill and no full disk costs a good one."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rollmill.persist import parts
from rollmill.persist.checkpoints import CheckpointConfig, Checkpoints, Content, Damaged


def sample(update: int, tag: int = 0) -> Content:
    """Different for every update and tag."""
    arrays = {"weights": {"w": np.full(20, update, np.float32)}, "journal": {"obs": np.full(30, tag, np.uint8)}}
    return Content(arrays, {"tag": tag}, update, update * 10, {"store": {"sealed": {"frames": np.arange(9)}}})


def told_apart(content: Content) -> tuple[int, int]:
    """Update and tag, after checking that all parts of the content belong to them."""
    update, tag = content.update, content.state["tag"]
    assert content.env_steps == update * 10
    assert content.arrays["weights"]["w"].tolist() == [update] * 20
    assert content.arrays["journal"]["obs"].tolist() == [tag] * 30
    assert content.chunks["store"]["sealed"]["frames"].tolist() == list(range(9))
    return update, tag


def names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name not in ("latest", "best"))


def numbers(folder: Path) -> list[int]:
    """The updates of the checkpoints, and nothing else may be there."""
    return [int(name.partition("-")[0]) for name in names(folder)]


def make(folder: Path, **config: Any) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig(**config))


def damage(path: Path) -> None:
    file = path / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")


# --- the schedule


def test_by_time_alone_a_checkpoint_is_due_when_the_seconds_have_passed(tmp_path):
    checkpoints = make(tmp_path, seconds=60)
    asked = [(0, 1000.0), (1, 1030.0), (2, 1059.9), (3, 1060.0), (4, 1100.0), (5, 1119.9), (6, 1500.0), (7, 1501.0)]
    #        first                                  60 s later                             440 s later
    assert [update for update, seconds in asked if checkpoints.due(update, seconds)] == [0, 3, 6]


def test_with_updates_the_multiples_are_due_and_the_seconds_hold_too(tmp_path):
    checkpoints = make(tmp_path, seconds=60, updates=10)
    # 1 s per update until 25, then a slow one: 60 s after the last checkpoint (20) it is due by time, 30 by number
    asked = [(update, float(update)) for update in range(26)] + [(26, 80.0), (29, 83.0), (30, 84.0), (47, 85.0)]
    assert [update for update, seconds in asked if checkpoints.due(update, seconds)] == [0, 10, 20, 26, 30, 47]


def test_one_update_is_due_once(tmp_path):
    checkpoints = make(tmp_path, seconds=1)
    assert [checkpoints.due(0, 0.0), checkpoints.due(0, 100.0), checkpoints.due(1, 100.0)] == [True, False, True]


def test_a_resumed_run_does_not_write_what_it_has_just_read(tmp_path):
    make(tmp_path).write(sample(5))
    checkpoints = make(tmp_path, seconds=60)
    assert checkpoints.newest() is not None
    assert checkpoints.last_update == 5
    assert not checkpoints.due(5, 0.0)
    assert not checkpoints.due(6, 59.0)
    assert checkpoints.due(7, 60.0)


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"keep": 0}, {"updates": 0}, {"milestone_steps": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        CheckpointConfig(**wrong)


def test_every_setting_is_described():
    assert all(field.description for field in CheckpointConfig.model_fields.values())


# --- what is kept


def test_the_newest_are_kept_and_latest_points_at_the_newest(tmp_path):
    checkpoints = make(tmp_path, keep=3)
    for update in range(6):
        path = checkpoints.write(sample(update))
        assert os.readlink(tmp_path / "latest") == path.name == f"{update:09d}"
    assert numbers(tmp_path) == [3, 4, 5]
    assert told_apart(Checkpoints.read(tmp_path / "latest")) == (5, 0)


def test_the_best_is_kept_linked_and_remembered_by_a_resumed_run(tmp_path):
    checkpoints = make(tmp_path, keep=1)
    for update, metric in enumerate([1.0, 7.0, 3.0, 7.0, None, float("nan"), float("inf")]):
        checkpoints.write(sample(update), metric)
    assert numbers(tmp_path) == [1, 6]  # the earlier of the two with 7
    assert os.readlink(tmp_path / "best") == "000000001"

    resumed = make(tmp_path, keep=1)
    resumed.newest()
    resumed.write(sample(7), 6.9)
    assert (numbers(tmp_path), os.readlink(tmp_path / "best")) == ([1, 7], "000000001")
    resumed.write(sample(8), 7.1)
    assert (numbers(tmp_path), os.readlink(tmp_path / "best")) == ([8], "000000008")


def test_the_values_of_another_metric_are_not_compared(tmp_path):
    make(tmp_path, best="return").write(sample(0), 100.0)
    checkpoints = make(tmp_path, best="success")
    checkpoints.write(sample(1), 0.5)
    assert os.readlink(tmp_path / "best") == "000000001"


def test_the_first_checkpoint_after_each_multiple_is_kept_for_ever(tmp_path):
    for update in (0, 3, 7, 10, 12, 19, 24, 26, 29, 41, 45, 46):  # a new process each time
        make(tmp_path, keep=1, milestone_steps=100).write(sample(update))
    # steps are 10 × update: 100 is reached at 10, 200 at 24, 300 and 400 at 41
    assert numbers(tmp_path) == [10, 24, 41, 46]


def test_damaged_ones_do_not_count_as_kept_and_go_when_they_are_passed(tmp_path):
    for update in (1, 2, 3, 9):
        make(tmp_path, keep=4).write(sample(update))
    damage(tmp_path / "000000009")
    resumed = make(tmp_path, keep=2)
    found = resumed.newest()
    assert found is not None
    assert found.content.update == 3
    assert resumed.write(sample(5)).name == "000000005"
    assert numbers(tmp_path) == [3, 5, 9]  # 9 isn't passed yet, and 3 and 5 are the two newest good ones
    assert resumed.newest().content.update == 5
    resumed.write(sample(10))
    assert numbers(tmp_path) == [5, 10]


def test_one_that_is_damaged_after_it_was_written_does_not_count_either(tmp_path):
    checkpoints = make(tmp_path, keep=2)
    for update in (1, 2):
        checkpoints.write(sample(update), float(update))
    damage(tmp_path / "000000002")
    assert checkpoints.newest().content.update == 1
    checkpoints.write(sample(3), 0.0)
    assert (numbers(tmp_path), os.readlink(tmp_path / "best")) == ([1, 3], "000000001")


def test_a_checkpoint_of_another_format_is_never_removed(tmp_path):
    checkpoints = make(tmp_path, keep=1)
    path = checkpoints.write(sample(1))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    resumed = make(tmp_path, keep=1)
    assert resumed.newest() is None
    assert "newer format" in resumed.complaints[0]
    for update in (2, 3):
        resumed.write(sample(update))
    assert numbers(tmp_path) == [1, 3]


def test_only_checkpoints_are_touched(tmp_path):
    strangers = ["notes.txt", "1", "000000000x", ".draft", ".draft-000000001-1"]  # process 1 is alive
    for name in strangers:
        (tmp_path / name).mkdir()
    checkpoints = make(tmp_path, keep=1)
    for update in range(3):
        checkpoints.write(sample(update))
    assert names(tmp_path) == sorted([*strangers, "000000002"])


# --- finding


def test_an_empty_or_missing_folder_has_none(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        checkpoints = make(folder)
        assert (checkpoints.newest(), checkpoints.complaints) == (None, [])


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoints = make(tmp_path / "file")
    assert checkpoints.newest() is None
    assert checkpoints.complaints == [f"{tmp_path}/file: can't be listed: Not a directory"]


def test_the_links_are_never_trusted(tmp_path):
    checkpoints = make(tmp_path)
    for update in (1, 2):
        checkpoints.write(sample(update), 0.0)
    for link in ("latest", "best"):
        (tmp_path / link).unlink()
        (tmp_path / link).symlink_to("000000001")
    assert make(tmp_path).newest().content.update == 2
    checkpoints.write(sample(3))
    assert os.readlink(tmp_path / "latest") == "000000003"


def test_each_that_was_passed_over_is_named_with_the_reason(tmp_path):
    checkpoints = make(tmp_path)
    for update in (1, 2, 3):
        checkpoints.write(sample(update))
    damage(tmp_path / "000000003")
    (tmp_path / "000000002" / "state.json").unlink()
    found = make(tmp_path).newest()
    assert told_apart(found.content) == (1, 0)
    assert found.complaints == [
        f"{tmp_path}/000000003: weights.safetensors has a wrong checksum",
        f"{tmp_path}/000000002: state.json is missing",
    ]


def test_a_renamed_checkpoint_is_not_taken_for_a_newer_one(tmp_path):
    checkpoints = make(tmp_path)
    for update in (1, 2):
        checkpoints.write(sample(update))
    shutil.copytree(tmp_path / "000000001", tmp_path / "000000009")
    found = make(tmp_path).newest()
    assert told_apart(found.content) == (2, 0)
    assert found.complaints == [f"{tmp_path}/000000009: is named for update 9 but holds update 1"]


def test_the_same_update_again_has_a_name_of_its_own_and_the_former_goes_after_it(tmp_path):
    for tag, name in enumerate(["000000004", "000000004-1", "000000004-2"]):
        assert make(tmp_path).write(sample(4, tag), float(tag)).name == name
        assert told_apart(make(tmp_path).newest().content) == (4, tag)
        assert names(tmp_path) == [name]
    make(tmp_path).write(sample(5), 3.0)
    assert names(tmp_path) == ["000000004-2", "000000005"]


def test_a_name_with_a_number_that_no_writer_gives_is_not_a_checkpoint(tmp_path):
    make(tmp_path).write(sample(4))
    for name in ("000000004-0", "000000004-01", "0000000005", "000000004-x"):
        shutil.copytree(tmp_path / "000000004", tmp_path / name)
    assert make(tmp_path).newest().path.name == "000000004"


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_former_one_serves_when_its_successor_of_the_same_update_is_damaged(tmp_path):
    make(tmp_path).write(sample(4, tag=1))
    shutil.copytree(tmp_path / "000000004", tmp_path / "000000004-1")
    damage(tmp_path / "000000004-1")
    resumed = make(tmp_path)
    found = resumed.newest()
    assert told_apart(found.content) == (4, 1)
    assert len(found.complaints) == 1
    resumed.write(sample(4, tag=2))
    assert names(tmp_path) == ["000000004-2"]
    assert told_apart(make(tmp_path).newest().content) == (4, 2)


# --- chunks


def files(path: Path) -> dict[str, int]:
    """The number of each file's place on the disk; links to one file have one."""
    return {file.name: file.stat().st_ino for file in path.iterdir()}


def with_chunks(update: int, chunks: dict[str, int]) -> Content:
    stored = {name: {"frames": np.full(1000, value, np.uint8)} for name, value in chunks.items()}
    return Content({"weights": {"w": np.zeros(3)}}, {}, update, update, {"store": stored})


def test_chunks_that_the_one_before_has_are_linked_and_only_new_ones_written(tmp_path, monkeypatch):
    written = []
    write = parts._write
    monkeypatch.setattr(parts, "_write", lambda path, data: written.append(path.name) or write(path, data))
    checkpoints = make(tmp_path, keep=1)
    first = files(checkpoints.write(with_chunks(1, {"0": 10, "1": 11})))
    written.clear()
    path = checkpoints.write(with_chunks(2, {"1": 11, "2": 12}))
    assert sorted(written) == ["manifest.json", "state.json", "store@2.safetensors", "weights.safetensors"]
    assert files(path)["store@1.safetensors"] == first["store@1.safetensors"]
    assert names(tmp_path) == ["000000002"]  # the first is gone, and the chunk is not
    content = make(tmp_path).newest().content
    assert {name: chunk["frames"][0] for name, chunk in content.chunks["store"].items()} == {"1": 11, "2": 12}

    resumed = make(tmp_path)  # another process shares with what it continues from
    resumed.newest()
    assert files(resumed.write(with_chunks(3, {"2": 12})))["store@2.safetensors"] == files(path)["store@2.safetensors"]


def test_chunks_of_a_line_that_was_given_up_are_not_shared(tmp_path):
    checkpoints = make(tmp_path)
    checkpoints.write(with_chunks(1, {"0": 10}))
    checkpoints.write(with_chunks(2, {"0": 10, "1": 11}))
    damage(tmp_path / "000000002")
    resumed = make(tmp_path)
    assert resumed.newest().content.update == 1
    content = Checkpoints.read(resumed.write(with_chunks(2, {"0": 10, "1": 99})))
    assert content.chunks["store"]["1"]["frames"][0] == 99


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: os.truncate(file, 5)])
def test_a_chunk_that_cannot_be_shared_is_written_again(tmp_path, spoil):
    checkpoints = make(tmp_path)
    spoil(checkpoints.write(with_chunks(1, {"0": 10})) / "store@0.safetensors")
    content = Checkpoints.read(checkpoints.write(with_chunks(2, {"0": 10})))
    assert content.chunks["store"]["0"]["frames"].tolist() == [10] * 1000


def test_without_links_chunks_are_written_again(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    checkpoints = make(tmp_path)
    paths = [checkpoints.write(with_chunks(update, {"0": 10})) for update in (1, 2)]
    assert files(paths[0])["store@0.safetensors"] != files(paths[1])["store@0.safetensors"]
    assert Checkpoints.read(paths[1]).chunks["store"]["0"]["frames"][0] == 10


def test_leftover_drafts_are_no_checkpoints_and_are_removed_by_the_next_write(tmp_path):
    make(tmp_path).write(sample(1))
    for name in (f".draft-000000002-{dead_process()}", f".draft-000000003-{os.getpid()}", ".trash-000000001-4194999"):
        shutil.copytree(tmp_path / "000000001", tmp_path / name)
    (tmp_path / f".draft-latest-{dead_process()}").symlink_to("000000009")
    assert told_apart(make(tmp_path).newest().content) == (1, 0)
    make(tmp_path).write(sample(2))
    assert numbers(tmp_path) == [1, 2]


# --- kills and failures at every step

STEPS = ("mkdir", "open", "fsync", "link", "rename", "replace", "symlink", "unlink", "rmdir")


class Fault:
    """Does `act` at the n-th step of writing, before or after the system call."""

    def __init__(self, step: int, is_after: bool, act: Callable[[], None]) -> None:
        self.step, self.is_after, self.act = step, is_after, act
        self.count = 0
        self.is_reached = False

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            here, self.count = self.count, self.count + 1
            if here == self.step and not self.is_after:
                self.is_reached = True
                self.act()
            result = function(*args, **kwargs)
            if here == self.step and self.is_after:
                self.is_reached = True
                self.act()
            return result

        return call

    def _half_written(self, path: Path, data: bytes) -> Any:
        """A file's writing is a step too: "after" means after half of its bytes."""
        here, self.count = self.count, self.count + 1
        if here == self.step:
            self.is_reached = True
            if self.is_after:
                path.write_bytes(data[: len(data) // 2])
            self.act()
        return self.write_file(path, data)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        self.write_file = parts._write
        patch.setattr(parts, "_write", self._half_written)
        for name in STEPS:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))


def killed_while_writing(folder: Path, content: Content, metric: float | None, step: int, is_after: bool) -> bool:
    """Write in a child that dies at the step; False if the writing has fewer steps."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            checkpoints = make(folder, keep=2)
            checkpoints.newest()
            Fault(step, is_after, lambda: os._exit(9)).install(pytest.MonkeyPatch())
            checkpoints.write(content, metric)
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def prepare_nothing(folder: Path) -> None:
    """The first checkpoint of a run, whose folder isn't there yet."""


def prepare_two(folder: Path) -> None:
    """A third one comes: one of the two goes, and `best` and `latest` move."""
    for update in (1, 2):
        make(folder, keep=2).write(sample(update), float(update))


def prepare_same(folder: Path) -> None:
    """The same update is there already."""
    for update in (2, 3):
        make(folder, keep=2).write(sample(update), float(update))


def prepare_leftovers(folder: Path) -> None:
    """An earlier process was killed after it had written the same update again, and an earlier one while writing it."""
    prepare_same(folder)
    shutil.copytree(folder / "000000003", folder / "000000003-1")
    shutil.copytree(folder / "000000002", folder / f".draft-000000003-{dead_process()}")


SITUATIONS = [prepare_nothing, prepare_two, prepare_same, prepare_leftovers]


def copies(situation: Callable[[Path], None], root: Path) -> Iterator[Path]:
    """The situation again and again."""
    situation(root / "prepared")
    while True:
        shutil.rmtree(root / "folder", ignore_errors=True)
        if (root / "prepared").exists():
            shutil.copytree(root / "prepared", root / "folder", symlinks=True)
        yield root / "folder"


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path, situation, is_after):
    outcomes = []
    for step, folder in enumerate(copies(situation, tmp_path)):
        before = make(folder).newest()
        was_killed = killed_while_writing(folder, sample(3, tag=5), 9.0, step, is_after)
        found = make(folder).newest()
        allowed = [(3, 5), told_apart(before.content) if before else None]
        outcome = told_apart(found.content) if found else None
        assert outcome in allowed
        assert found is None or not found.complaints
        outcomes.append(outcome == (3, 5))
        for path in folder.glob("0*"):  # none is half removed either
            told_apart(Checkpoints.read(path))

        # whoever comes next repairs everything
        resumed = make(folder, keep=2)
        resumed.newest()
        resumed.write(sample(4, tag=6), 8.0)
        assert told_apart(make(folder).newest().content) == (4, 6)
        assert [number for number in numbers(folder) if number not in (1, 2, 3, 4)] == []
        assert len(numbers(folder)) <= 3  # two newest and the best
        assert os.readlink(folder / "latest") == "000000004"
        assert (folder / "best" / "manifest.json").exists()
        if not was_killed:
            break
    assert len(outcomes) > 15
    assert outcomes == sorted(outcomes)  # from one step on it is the new one, and it never goes back
    assert outcomes[-1]
    assert not outcomes[0]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_error_at_any_step_leaves_no_draft_and_all_others_as_they_were(tmp_path, situation, monkeypatch):
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    errors = 0
    for step, folder in enumerate(copies(situation, tmp_path)):
        checkpoints = make(folder, keep=2)
        before = checkpoints.newest()
        held = contents(folder)
        fault = Fault(step, False, fail)
        with monkeypatch.context() as patch:
            fault.install(patch)
            try:
                checkpoints.write(sample(3, tag=5), 9.0)
                has_failed = False
            except OSError:
                has_failed = True
                errors += 1
        found = make(folder).newest()
        outcome = told_apart(found.content) if found else None
        if not has_failed:
            assert outcome == (3, 5)
        elif outcome != (3, 5):  # it is there if the last fsync failed
            assert outcome == (told_apart(before.content) if before else None)
            assert contents(folder) == held
            if situation is not prepare_leftovers:  # there one update has two
                assert [f"{update:09d}" for update, _ in held] == sorted(path.name for path in folder.glob("0*"))
            assert not [name for name in os.listdir(folder) if name.startswith(".draft")] if folder.exists() else True
        checkpoints.write(sample(3, tag=6), 9.0)
        assert told_apart(make(folder).newest().content) == (3, 6)
        assert set(numbers(folder)) <= {1, 2, 3}
        if not fault.is_reached:
            break
    assert errors > 8


def contents(folder: Path) -> list[tuple[int, int]]:
    """All good checkpoints."""
    found = []
    for path in folder.glob("*") if folder.exists() else ():
        if not path.is_symlink() and not path.name.startswith((".draft", ".trash")):
            with suppress(Damaged):
                found.append(told_apart(Checkpoints.read(path)))
    return sorted(found)


@settings(max_examples=25, deadline=None)
@given(
    kills=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 45), st.booleans(), st.none() | st.floats(-5, 5)), max_size=8
    )
)
def test_kills_one_after_another_never_lose_a_checkpoint_that_was_seen(kills):
    """Each run goes on from what it finds, by 0 to 2 updates, and is killed while writing."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run" / "checkpoints"
        seen = None
        for tag, (ahead, step, is_after, metric) in enumerate(kills, start=1):
            attempt = (seen[0] if seen else 0) + ahead, tag
            was_killed = killed_while_writing(folder, sample(*attempt), metric, step, is_after)
            found = make(folder).newest()
            now = told_apart(found.content) if found else None
            assert now == attempt if not was_killed else now in (attempt, seen)
            assert found is None or not found.complaints
            seen = now
        make(folder).write(sample(100))
        assert told_apart(make(folder).newest().content) == (100, 0)
        assert not [name for name in os.listdir(folder) if name.startswith(".")]


# --- the disk


def test_a_folder_that_was_removed_is_made_anew(tmp_path):
    checkpoints = make(tmp_path / "run" / "checkpoints")
    for update in (1, 2):
        checkpoints.write(sample(update), 9.0 - update)
    shutil.rmtree(tmp_path / "run")
    path = checkpoints.write(sample(3), 1.0)
    assert path.exists()
    assert told_apart(checkpoints.newest().content) == (3, 0)
    assert os.readlink(tmp_path / "run" / "checkpoints" / "best") == "000000003"  # of those that are there


def test_a_folder_that_cannot_be_made_is_an_oserror(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError):
        make(tmp_path / "run" / "checkpoints").write(sample(1))
    assert (tmp_path / "run").read_text() == "a file"


ON_A_SMALL_DISK = """
import errno, os, subprocess, sys
from pathlib import Path
import numpy as np
from rollmill.persist.checkpoints import CheckpointConfig, Checkpoints, Content

disk = Path(sys.argv[1])
mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
if mounted.returncode:
    sys.exit(77)
checkpoints = Checkpoints(disk / "checkpoints", CheckpointConfig(keep=2))

def write(update, size):
    try:
        return checkpoints.write(Content({"w": {"w": np.zeros(size, np.uint8)}}, {}, update, update), float(update))
    except OSError as error:
        return error.errno

def newest():
    fresh = Checkpoints(disk / "checkpoints", CheckpointConfig())
    return fresh.newest().content.update, fresh.complaints, sorted(os.listdir(disk / "checkpoints"))

assert write(1, 1000).name == "000000001"
for update in (2, 3, 4):
    assert write(update, 1_000_000) == errno.ENOSPC
    assert newest() == (1, [], ["000000001", "best", "latest"]), newest()
assert write(1, 1_000_000) == errno.ENOSPC
assert newest() == (1, [], ["000000001", "best", "latest"]), newest()
assert write(5, 1000).name == "000000005"
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
assert write(6, 1000) == errno.EROFS
assert newest() == (5, [], ["000000001", "000000005", "best", "latest"]), newest()
print("fine")
"""


def test_a_disk_that_is_really_full_or_read_only_costs_no_checkpoint(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("no mounts for this user")
    assert (done.stdout, done.stderr) == ("fine\n", "")
