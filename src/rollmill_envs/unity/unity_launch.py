"""Replaces itself by the build, which dies with its parent: `unity_launch.py PARENT BUILD ARGUMENTS…`.

The file is executed by itself (`bare_program`). Python could do the same between fork and exec, but not
safely in a process with gRPC's threads.
"""

from __future__ import annotations

import os
import sys

from rollmill.launch.proc import die_with


def main() -> None:
    """Turn into the build."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with(parent)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} can't be executed: {error.strerror}")


if __name__ == "__main__":
    main()
