"""Imports point downwards, and nothing heavy happens at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "rollmill"

LAYERS = [
    {
        "types",
        "nested",
        "fields",
        "spaces",
        "seeding",
        "config",
        "config_file",
        "config_yaml",
        "errors",
        "loading",
        "liveness",
        "pulse",
        "caches",
        "children",
        "sampling",
        "native",
        "numerics",
        "student",
    },
    {"models"},
    {"stores", "transport", "algorithms", "envs"},
    {"actors", "learners", "observe"},
    {"runtime"},
    {
        "experiment",
        "retrace",
        "evaluation",
        "seeds",
        "policy",
        "assembly",
        "settings",
        "run_folder",
        "resuming",
        "saving",
        "session",
        "interruption",
        "watching",
        "tuning",
        "profiling",
    },
    {"cli", "report", "__main__", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """The parts of rollmill that a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rollmill":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("rollmill.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_imports_point_downwards():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files
        for name in imports(path)
        if LEVEL[name] > LEVEL[part_of(path)]
    ]
    assert not upward


def test_algorithms_know_nothing_of_transport_stores_or_environments():
    for path in (SOURCE / "algorithms").glob("*.py"):
        allowed = {"algorithms", *LAYERS[0], *LAYERS[1]}
        assert imports(path) <= allowed, path.name


def test_stores_transport_and_envs_never_import_algorithms():
    for part in ("stores", "transport", "envs", "models"):
        for path in (SOURCE / part).rglob("*.py"):
            assert "algorithms" not in imports(path), path


def test_no_file_is_named_after_nothing():
    names = {path.stem for path in SOURCE.rglob("*.py")}
    assert not names & {"utils", "common", "misc", "helpers"}


def test_reports_and_observers_work_without_torch():
    code = "import sys; import rollmill.report.runs, rollmill.observe.standard; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_everything_draws_no_random_number_and_starts_no_thread():
    code = """
import pkgutil, random, threading, importlib
import numpy as np, torch, rollmill, rich.live, rich.progress, rich.style  # rich draws link ids when imported
before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
for module in pkgutil.walk_packages(rollmill.__path__, "rollmill."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
after = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
assert before == after, "somebody used a global generator"
assert threading.active_count() == 1
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
