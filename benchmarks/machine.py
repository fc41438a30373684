"""What a figure has to be stored with: machine, commit, package versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("rollmill", "torch", "numpy", "gymnasium", "gym", "ale-py", "vizdoom"),
    *("stable-baselines3", "cleanrl", "envpool", "sample-factory"),
)

_LIST_VERSIONS = """
import importlib.metadata, json, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


def describe_run(load: float, pythons: Mapping[str, Path]) -> dict[str, Any]:
    """All of it, for a results file; `load` is the load average before the run, `pythons` are those of the peers."""
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "load": load,
        "versions": {side: package_versions(p) for side, p in {"ours": Path(sys.executable), **pythons}.items()},
    }


def describe_machine() -> dict[str, str | int]:
    """The machine in a few words; no names of hosts or folders."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
    }


def describe_commit() -> str:
    """The commit of the work tree, marked where tracked files differ from it."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "not committed yet"
    return f"{commit} + changes" if _git("status", "--porcelain", "--untracked-files=no") else commit


def package_versions(python: Path) -> dict[str, str]:
    """Versions of the packages that matter, in the environment of `python`."""
    output = subprocess.run([python, "-c", _LIST_VERSIONS, *PACKAGES], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(output.stdout)
    return versions


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _git(*arguments: str) -> str:
    """What git says, or nothing where it refuses."""
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""
