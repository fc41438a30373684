"""The command line: one file per verb; what a verb needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    # Numeric libraries read these once, when they are loaded, and would start a thread per core in every process.
    # Roles that are given more threads by the config raise them later with torch.set_num_threads.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    from rollmill.cli.app import app
    from rollmill.cli.exits import exit_code

    words = list(sys.argv[1:] if arguments is None else arguments)
    # taken out here, because typer would accept it on one side of the verb only
    is_debugging = "--debug" in words
    words = [word for word in words if word != "--debug"]
    # called by a program, with words of its own, this process is not ours to begin again
    return exit_code(
        lambda: app(words, prog_name="rollmill", standalone_mode=False), is_debugging, may_restart=arguments is None
    )
