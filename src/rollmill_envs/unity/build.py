"""The executable of a Unity build: where it is, and how it is started so that it dies with us."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rollmill.errors import Absent, Refused, nearest
from rollmill.launch.children import bare_program
from rollmill.launch.proc import RUN_VARIABLE, new_mark
from rollmill_envs.unity import unity_launch
from rollmill_envs.unity.config import UnityConfig

_SUFFIXES = (".x86_64", ".x86")  # that Unity gives to Linux builds; users leave them out


def find_build(settings: UnityConfig) -> Path:
    """The file to execute, or a refusal that names what is there instead."""
    where = f"env.args.build={settings.build}"
    path = Path(settings.build).expanduser().absolute()
    if path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.suffix in _SUFFIXES]
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise Refused(f"{where}: a folder must hold one build (*.x86_64), but there is: {names}; name the file")
        path = found[0]
    if not path.is_file():
        with_suffix = [Path(f"{path}{suffix}") for suffix in _SUFFIXES]
        path = next((file for file in with_suffix if file.is_file()), path)
    if not path.is_file():
        if not path.parent.is_dir():
            raise Absent(f"{where}: no such file, nor its folder; give the path of the executable")
        builds = [file.name for file in path.parent.iterdir() if file.suffix in _SUFFIXES]
        raise Absent(f"{where}: no such file; {nearest(path.name, builds) if builds else 'its folder holds no build'}")
    if not os.access(path, os.X_OK):
        raise Refused(f"{where}: not executable; chmod +x {path.name}")
    return path


def start_build(path: Path, settings: UnityConfig, port: int) -> subprocess.Popen[bytes]:
    """Start the build, which is to connect to `port`; its output is a pipe where it is to be kept."""
    arguments = ["-nographics", "-batchmode"] if settings.no_graphics else []
    arguments += ["--mlagents-port", str(port)]
    arguments += ["-logFile", "-"]  # to its standard output, else it would fill a file of its own choice
    is_kept = settings.log_folder is not None
    return subprocess.Popen(
        bare_program(unity_launch.__file__, os.getpid(), path, *arguments, *settings.arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if is_kept else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if is_kept else subprocess.DEVNULL,
        env={RUN_VARIABLE: new_mark("environment"), **os.environ},  # a worker's mark, or one of our own
        start_new_session=True,  # Ctrl-C must reach only us; we then close the build
    )
