"""Starts the Doom engine so that it dies with its parent and leaves no files or shared memory.

By itself the engine outlives a killed parent, and both leave files and memory: a folder where the engine was started,
three named segments in shared memory. Here the kernel is asked to kill the engine when its parent dies, it is started
in a temporary folder, and a janitor, a process of its own, removes the folder (and the segments, if the parent can't)
as soon as the engine has started or the parent is dead.

The file is executed by itself (`bare_program`): <parent> <descriptor> <engine> <its arguments>.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from contextlib import suppress

from rollmill.launch.proc import RUN_VARIABLE, die_with, new_mark

SEGMENTS = ("ViZDoomSM", "ViZDoomMQCtr", "ViZDoomMQDoom")  # each followed by the number of the game
SHARED_MEMORY = "/dev/shm"
_ID_ARGUMENT = "+viz_instance_id"
_LOOK_SECONDS = 0.02
_REMOVALS = 50
_LONGEST_START_SECONDS = 120.0  # later the engine needs no folder: it hangs, or is dead


def segments_of(instance: str) -> list[str]:
    """The paths of the shared memory of a game."""
    return [f"{SHARED_MEMORY}/{name}{instance}" for name in SEGMENTS]


def main() -> None:
    """Become the engine."""
    parent, script, engine, *arguments = sys.argv[1:]
    os.close(int(script))  # that started us; the engine has no use for it
    os.setpgid(0, 0)  # signals to the parent's group must not reach us: we detect its death ourselves
    segments = segments_of(arguments[arguments.index(_ID_ARGUMENT) + 1])
    try:
        folder = tempfile.mkdtemp(prefix="rollmill-doom-")
    except OSError as error:
        _remove("", segments)
        sys.exit(f"rollmill: no temporary folder for the engine: {error}")
    _leave_janitor(int(parent), folder, segments)
    die_with(int(parent))
    os.environ.setdefault(RUN_VARIABLE, new_mark("environment", int(parent)))  # unless a worker started us
    os.chdir(folder)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(silence, 1)
    os.execv(engine, [engine, *arguments])


def _leave_janitor(parent: int, folder: str, segments: list[str]) -> None:
    """Fork twice, so that the engine has no child to wait for."""
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:  # it died while this interpreter started
        _remove(folder, segments)
        os._exit(1)
    child = os.fork()
    if child == 0:
        os.setsid()  # a signal to the parent's group doesn't reach the janitor
        if os.fork() == 0:
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # a reader of the parent's output must not wait for us
                os.dup2(silence, stream)
            _clean_up(watched, folder, segments)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(watched)


def _clean_up(watched: int, folder: str, segments: list[str]) -> None:
    """Wait for the parent's death or for the start of the engine, which is when the parent removes the segments."""
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    for _ in range(int(_LONGEST_START_SECONDS / _LOOK_SECONDS)):
        if not any(map(os.path.exists, segments)):
            break
        if poll.poll(_LOOK_SECONDS * 1000):
            break
    _remove(folder, segments)


def _remove(folder: str, segments: list[str]) -> None:
    import shutil

    for segment in segments:
        with suppress(FileNotFoundError):
            os.unlink(segment)
    for _ in range(_REMOVALS):  # an engine that is closed at this moment writes its settings into the folder
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
