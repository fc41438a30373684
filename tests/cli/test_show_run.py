"""`rollmill show RUN`: the summary of a run, from its files alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmill.report.runs import read_summary

SUMMARY = {
    "status": "done",
    "run": "runs/a",
    "parameters_sha256": "ab12",
    "env_steps": 100352,
    "random_baseline": {"return": 21.25, "episodes": 20},
    "returns": {"ema": 487.123456789, "mean_100": None},
    "solved": True,
    "written_at": 0.5,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/a")
    (folder / "logs").mkdir(parents=True)
    write(folder / "run.json", {"pid": os.getpid(), "host": platform.node()})
    write(folder / "summary.json", SUMMARY)
    return folder


def write(file: Path, record: Any) -> None:
    file.write_text(json.dumps(record))


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_summary_reads_as_at_the_end_of_training(rollmill: Callable[..., Any], run: Path) -> None:
    (run / "curve.png").touch()
    code, out, err = rollmill("show", str(run))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "runs/a"
    assert "  status     done" in out
    assert "  trained    100,352 env steps" in out
    assert "487.1 (smoothed)" in out
    assert "  everything rollmill show runs/a --json" in out
    assert "  parameters sha256 ab12" in out
    assert "  curve      runs/a/curve.png" in out


def test_json_is_the_summary_with_what_was_found_beside_it(rollmill: Callable[..., Any], run: Path) -> None:
    assert json.loads(rollmill("show", str(run), "--json").out) == {
        **SUMMARY,
        "process": {"pid": os.getpid(), "host": platform.node()},
        "files": {"logs": "runs/a/logs"},
    }


def test_a_run_goes_on_while_its_process_does(run: Path) -> None:
    write(run / "summary.json", {"status": "running"})
    assert read_summary(run)["status"] == "running"


def test_a_run_whose_process_is_gone_has_died(run: Path, dead_pid: int) -> None:
    write(run / "summary.json", {"status": "running"})
    write(run / "run.json", {"pid": dead_pid, "host": platform.node()})
    assert read_summary(run)["status"] == "died"
    write(run / "run.json", {"pid": dead_pid, "host": "elsewhere"})
    assert read_summary(run)["status"] == "running"  # nobody here can tell


def test_a_process_with_the_same_number_that_began_later_is_another_one(run: Path) -> None:
    write(run / "summary.json", {"status": "running"})
    long_ago = 1_000_000_000
    os.utime(run / "run.json", (long_ago, long_ago))
    assert read_summary(run)["status"] == "died"


def test_a_zombie_does_not_train(run: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.read()  # ends when the child does; it stays a zombie until it is waited for
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        write(run / "summary.json", {"status": "running"})
        write(run / "run.json", {"pid": child.pid, "host": platform.node()})
        assert read_summary(run)["status"] == "died"
    finally:
        child.communicate()


def test_a_run_that_has_written_no_summary_yet_is_running(run: Path) -> None:
    (run / "summary.json").unlink()
    assert read_summary(run)["status"] == "running"


def test_a_run_that_ended_keeps_its_status(run: Path, dead_pid: int) -> None:
    write(run / "run.json", {"pid": dead_pid, "host": platform.node()})
    assert read_summary(run)["status"] == "done"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"status": "do', "Unterminated string starting at: line 1 column 12 (char 11)"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_broken_summary_is_refused(rollmill: Callable[..., Any], run: Path, content: bytes, reason: str) -> None:
    (run / "summary.json").write_bytes(content)
    line = (
        f"rollmill: runs/a/summary.json: broken or cut short ({reason}): the run's metrics and logs are still there\n"
    )
    assert rollmill("show", "runs/a") == (2, "", line)


def test_a_summary_that_is_no_record_is_refused(rollmill: Callable[..., Any], run: Path) -> None:
    (run / "summary.json").write_text("[1]")
    line = "rollmill: runs/a/summary.json: not a record of a run: the run's metrics and logs are still there\n"
    assert rollmill("show", "runs/a") == (2, "", line)


def test_what_is_neither_a_run_nor_a_config_is_refused(rollmill: Callable[..., Any], run: Path) -> None:
    give = "give a YAML file or a folder that `rollmill train` made"
    assert rollmill("show", "runs") == (2, "", f"rollmill: runs: not a run (no run.json in it): {give}\n")
    assert rollmill("show", "nothing") == (2, "", f"rollmill: nothing: no such config or run: {give}\n")
    assert rollmill("show", "runs/aa") == (2, "", "rollmill: runs/aa: no such config or run: did you mean 'a'?\n")


def test_a_report_needs_no_torch(run: Path) -> None:
    code = (
        "import sys; from rollmill.cli import main; main(['show', 'runs/a']);"
        "sys.exit(f'loaded {heavy}' if (heavy := {'torch', 'numpy', 'gymnasium'} & set(sys.modules)) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
