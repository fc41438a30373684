"""What the processes that we start find in their environment variables."""

from __future__ import annotations

import os
import sys

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def child_variables() -> dict[str, str]:
    """One thread per process, by default, and the modules of this one: a user's own are among them."""
    return dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
