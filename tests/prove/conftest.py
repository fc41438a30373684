"""The long proofs print what they found; `make prove` keeps it in docs/prove.txt."""

from __future__ import annotations

import os
import platform
import time

import pytest

from rollmill.persist.run_folder import git_commit


@pytest.fixture(scope="session", autouse=True)
def heading():
    print(
        f"\ncommit {git_commit()}, {time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,", end=" "
    )
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
