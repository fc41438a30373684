"""Replaces itself by the build, which dies with its parent: `unity_launch.py PARENT BUILD ARGUMENTS…`.

The file is executed as it is (`python -I -S unity_launch.py`). Python could do the same between fork and exec, but not
safely in a process with gRPC's threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Turn into the build."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the kernel was asked to watch it
        sys.exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} can't be executed: {error.strerror}")


if __name__ == "__main__":
    main()
