"""Whether the process of a run folder is still alive."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_gone(process: Mapping[str, Any], written: Path) -> bool:
    """Whether the process that wrote run.json has ended; unknown, hence False, for one on another host."""
    pid = process.get("pid")
    if not isinstance(pid, int) or process.get("host") != platform.node():
        return False
    try:
        # the name in parentheses may hold spaces; after it are the state and, 19 fields further, the start
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return True
    is_zombie = fields[0] in "ZX"
    # Numbers are used again, in containers soon: a process that began after the file was written is another one.
    began = _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return is_zombie or began > written.stat().st_mtime + 10.0  # seconds of slack for a clock that was set


def _boot_time() -> int:
    """When the machine started, in seconds since 1970."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime"))
