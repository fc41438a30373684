"""How the command line ends: exit codes, one line for the user, a traceback for --debug."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmill.errors import Detected, Refused, Stalled, WorkerFailed


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rollmill.cli import main; code = main(['--help']);"
        "heavy = {'torch', 'numpy', 'gymnasium', 'pydantic', 'yaml'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    ended = python(code)
    assert (ended.returncode, ended.stderr) == (0, "")
    for verb in ("train", "show", "check", "list"):
        assert verb in ended.stdout


def test_python_m_rollmill_refuses_with_code_2_and_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rollmill", "list", "algoritms"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "rollmill: list: 'algoritms' is unknown: did you mean 'algorithms'?\n"
    assert ended.stdout == ""


def test_numeric_libraries_start_with_one_thread_unless_the_user_says_otherwise() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    code = (
        "import os; from rollmill.cli import main; main(['list', 'x']);"
        "print(*(os.environ[f'{n}_NUM_THREADS'] for n in ('OMP', 'OPENBLAS', 'MKL')))"
    )
    assert python(code, env={**environment, "MKL_NUM_THREADS": "7"}).stdout == "1 1 7\n"


def test_sigterm_unwinds_and_ends_with_143() -> None:
    code = (
        "import os, signal, sys, time\n"
        "from rollmill.cli.exits import exit_code\n"
        "def verb():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned up')\n"
        "sys.exit(exit_code(verb, False))\n"
    )
    ended = python(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "cleaned up\n", "")


@pytest.mark.parametrize("flush", ["True", "False"])  # the pipe breaks while the verb runs, or when it is done
def test_a_reader_that_goes_away_is_no_reason_to_complain(flush: str) -> None:
    code = (
        "import sys, typer; from rollmill.cli.exits import exit_code\n"
        "app = typer.Typer()\n"
        f"app.command()(lambda: print('x', flush={flush}))\n"
        "sys.exit(exit_code(lambda: app([], standalone_mode=False), False))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", code]
        buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=buffered)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Refused("seed: -1 is out of range"), 2, "rollmill: seed: -1 is out of range\n"),
        (Detected("loss is NaN"), 3, "rollmill: loss is NaN\n"),
        (Stalled("no progress\nfor 60 s"), 1, "rollmill: no progress for 60 s\n"),
        (
            WorkerFailed("worker 3 died", "Traceback (most recent call last):\nValueError: child\n"),
            1,
            "Traceback (most recent call last):\nValueError: child\nrollmill: worker 3 died\n",
        ),
        (
            ZeroDivisionError("division by zero"),
            1,
            "rollmill: ZeroDivisionError: division by zero (a fault; --debug shows where)\n",
        ),
        (
            BrokenPipeError(32, "Broken pipe"),  # to a worker: typer would say nothing
            1,
            "rollmill: BrokenPipeError: [Errno 32] Broken pipe (a fault; --debug shows where)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_becomes_a_line_and_a_code(
    rollmill: Callable[..., Any], experiment: Any, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    experiment.train_run = fail
    assert rollmill("train", "x.yaml") == (code, "", message)


@pytest.mark.parametrize("words", [("--debug", "train", "x.yaml"), ("train", "x.yaml", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(
    rollmill: Callable[..., Any], experiment: Any, words: tuple[str, ...]
) -> None:
    def fail(*_: Any) -> None:
        raise Refused("no")

    experiment.train_run = fail
    ended = rollmill(*words)
    assert ended.code == 2
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ", in fail\n" in ended.err
    assert ended.err.endswith("\nrollmill: no\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "No such command 'trian'. Did you mean 'train'? (see `rollmill --help`)"),
        ("train", "Missing argument 'CONFIG|RUN' (see `rollmill train --help`)"),
        ("train x.yaml --fro", "No such option: --fro (Possible options: --from, --run) (see `rollmill train --help`)"),
        ("list", "Missing argument 'algorithms|envs|configs' (see `rollmill list --help`)"),
    ],
)
def test_a_wrong_command_line_is_code_2_with_one_line(rollmill: Callable[..., Any], words: str, message: str) -> None:
    assert rollmill(*words.split()) == (2, "", f"rollmill: {message}\n")


def test_no_word_at_all_shows_the_help(rollmill: Callable[..., Any]) -> None:
    ended = rollmill()
    assert (ended.code, ended.err) == (2, "")
    assert "Usage: rollmill" in ended.out


def test_sigterm_is_handled_as_before_once_a_verb_is_done(rollmill: Callable[..., Any]) -> None:
    outer = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        rollmill("--help")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, outer)
