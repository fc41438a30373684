"""Watching turned on and off while a run trains, by a key and by a file; it never outlives the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import termios
import urllib.request
from pathlib import Path

import pytest
from tiny_run import CONFIG, OnTerminal, command, eventually, processes_with

from rollmill.config.yaml_text import written
from rollmill.console.keys import Keys

pytestmark = pytest.mark.slow

PAGE = re.compile(r"watch: (http://127\.0\.0\.1:\d+/)")


@pytest.fixture
def config(tmp_path) -> Path:
    """A run that goes on until it is ended."""
    endless = {
        **CONFIG,
        "train": {"steps": 10**9},
        "checkpoint": {"seconds": 1},
        "observe": {**CONFIG["observe"], "console": "auto", "watch_niceness": 0},  # tests run on busy machines
    }
    path = tmp_path / "endless.yaml"
    path.write_text(written(endless))
    return path


def looked_at(address: str) -> bytes:
    return urllib.request.urlopen(address + "scene?after=0", timeout=30).read()


def test_a_key_turns_it_on_and_off_and_the_terminal_is_given_back(config, tmp_path):
    run = tmp_path / "run"
    program = OnTerminal("train", config, "--run", run)
    before = termios.tcgetattr(program.terminal)
    eventually(lambda: "keys: w shows the policy playing" in program.read(), 60)
    eventually(lambda: not termios.tcgetattr(program.terminal)[3] & termios.ECHO)
    program.press("w")
    page = eventually(lambda: PAGE.search(program.read()), 60)[1]
    assert (run / "watch").exists()
    eventually(lambda: looked_at(page).startswith(b"\x89PNG"), 60)
    assert page in (run / "logs" / "watch.log").read_text()
    program.press("w")
    eventually(lambda: "watch: off" in program.read())
    assert not (run / "watch").exists()
    assert not processes_with(f"watch {run}")
    program.press("w")
    eventually(lambda: processes_with(f"rollmill watch {run}"))
    program.press("\x03")  # Ctrl-C, while it is on
    assert program.end() == 128 + signal.SIGINT
    assert termios.tcgetattr(program.terminal) == before
    assert processes_with(str(run)) == []
    assert not (run / "watch").exists()  # the key made it
    os.close(program.terminal)


def test_a_file_turns_it_on_and_a_killed_run_takes_it_along(config, tmp_path):
    run = tmp_path / "run"
    train = command("train", config, "--run", run, "observe.console=none")
    process = subprocess.Popen(train, stdin=subprocess.DEVNULL)
    try:
        eventually(lambda: (run / "checkpoints" / "latest").exists(), 60)
        (run / "watch").write_text("0\n")
        log = run / "logs" / "watch.log"
        page = eventually(lambda: log.exists() and PAGE.search(log.read_text()), 60)[1]
        eventually(lambda: looked_at(page).startswith(b"\x89PNG"), 60)
        (run / "watch").unlink()
        eventually(lambda: not processes_with(f"rollmill watch {run}"))
        (run / "watch").touch()
        eventually(lambda: processes_with(f"rollmill watch {run}"))
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not processes_with(str(run)), 5)


def test_a_killed_program_gives_the_terminal_back(tmp_path):
    """Nothing of ours runs in it any more; the keeper does it."""
    leader, follower = os.openpty()
    before = termios.tcgetattr(follower)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.ttyname(follower), os.O_RDWR), 0)  # becomes the terminal of the new session
        os.tcsetpgrp(0, os.getpgrp())
        Keys(0).read()
        signal.pause()
    eventually(lambda: not termios.tcgetattr(follower)[3] & (termios.ECHO | termios.ICANON))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    eventually(lambda: termios.tcgetattr(follower) == before, 10)
    os.close(leader)
    os.close(follower)
