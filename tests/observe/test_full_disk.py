"""Disks that really refuse: a file system of 1 MiB or without leave to write, mounted for one process, and a limit on
file sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollmill.persist.rewind import trim

TRAIN = """
import os, resource, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conftest import make_run
from rollmill.observe.config import ObserveConfig
from rollmill.observe.dispatcher import Dispatcher
from rollmill.events import Checkpointing
from rollmill.console.standard import default_observers
from rollmill.persist.writing import to_json

mode, run = sys.argv[2], Path(sys.argv[3])
ballast = run.parent / "ballast"
told = []
start, *events = make_run(updates=300)
last = events.pop()
dispatcher = Dispatcher(default_observers(run, ObserveConfig(console="none", log_interval=0)), say=told.append)
dispatcher.start()
dispatcher.publish(start)

def publish(events):
    for event in events:
        dispatcher.publish(event)
    dispatcher.publish(Checkpointing(events[-1].progress))
    assert dispatcher.flush(20)

publish(events[:200])  # updates 1 to 100
if mode == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
elif mode == "disk":
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1000))
        except OSError:
            pass
publish(events[200:400])  # 101 to 200: no room
if mode == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
elif mode == "disk":
    ballast.unlink()
publish(events[400:])  # 201 to 300: room again
losses = dispatcher.losses()
dispatcher.publish(last)
dispatcher.close()
print(to_json({"losses": losses, "told": told, "report": dispatcher.report()}))
"""


def command(mode: str, run: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", TRAIN, str(Path(__file__).parent), mode, str(run), *more]


def mounted(options: str, disk: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    """Train on a file system of its own, which ends with the process; what is to be looked at is copied out."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    disk.mkdir()
    mount = 'mount -t tmpfs none "$DISK" && mkdir "$DISK/run" && mount -o "remount,$OPTIONS" "$DISK"'
    script = f'{mount} && "$@" && cp -a "$DISK" "$COPY"'
    words = ["unshare", "-rm", "sh", "-c", script, "sh", *command("disk" if "size" in options else "", disk / "run")]
    names = {"OPTIONS": options, "DISK": str(disk), "COPY": str(copy)}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, **names})


def check(run: Path, printed: str) -> None:
    """Every line is whole, losses are told once each and counted, and writing went on when there was room again."""
    outcome = json.loads(printed)
    assert len(outcome["told"]) == len(outcome["losses"]), outcome["told"]
    assert not any(part["detached"] for part in outcome["report"].values())
    updates = [json.loads(line)["updates"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert updates[:100] == list(range(1, 101))
    assert updates[-100:] == list(range(201, 301))
    assert updates == sorted(set(updates))
    lost = int(outcome["losses"]["jsonl"].rpartition("(")[2].split()[0])
    assert lost > 0
    assert len(updates) + lost == 300
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    trim(run, 30_000)  # drops whatever is torn
    assert {path: path.read_bytes() for path in before} == before
    assert json.loads((run / "summary.json").read_text())["status"] == "done"
    assert not list(run.glob(".*"))


def test_a_file_system_without_room_costs_rows_but_nothing_else(tmp_path: Path) -> None:
    ended = mounted("size=1m", tmp_path / "disk", tmp_path / "copy")
    assert ended.returncode == 0, ended.stderr
    check(tmp_path / "copy" / "run", ended.stdout)
    losses = json.loads(ended.stdout)["losses"]
    assert {"jsonl", "csv", "episodes", "tensorboard", "logs"} <= set(losses)
    assert all("No space left on device" in text for text in losses.values())


def test_a_folder_that_can_not_be_written_is_told_once_per_observer(tmp_path: Path) -> None:
    ended = mounted("ro", tmp_path / "disk", tmp_path / "copy")
    assert ended.returncode == 0, ended.stderr
    outcome = json.loads(ended.stdout)
    assert set(outcome["losses"]) == {"jsonl", "csv", "episodes", "tensorboard", "logs", "summary"}
    assert all("Read-only file system" in text for text in outcome["losses"].values())
    assert len(outcome["told"]) == 6
    assert not any(part["detached"] for part in outcome["report"].values())


# Rows of metrics.jsonl take about 270 bytes, so 100 of them less than either limit and 200 more.
@pytest.mark.parametrize("limit", [32_011, 40_500])  # bytes; a write that passes it is cut short by the kernel
def test_writes_that_are_cut_short_leave_no_torn_line(tmp_path: Path, limit: int) -> None:
    run = tmp_path / "run"
    run.mkdir()
    ended = subprocess.run(command("limit", run, str(limit)), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    check(run, ended.stdout)
    outcome = json.loads(ended.stdout)
    assert "File too large" in outcome["losses"]["jsonl"]
    assert int(outcome["losses"]["jsonl"].rpartition("(")[2].split()[0]) < 100, "the limit was passed before it was set"
