"""Imports point downwards, and nothing heavy happens at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# A room imports from its own line and from the lines above it, at any depth of its code.
ROOMS = """
types nested fields spaces seeding errors events numerics intervals
config
launch
native
models
envs transport
algorithms stores rollmill_envs
flight persist
actors
learners
observe
console
runtime
settings
doctor resuming saving
play
history
session
experiment retrace
profiling trials
report
cli __init__ __main__
"""
LEVEL = {room: level for level, line in enumerate(ROOMS.strip().splitlines()) for room in line.split()}


def room_of(parts: tuple[str, ...] | list[str]) -> str:
    """The room of a module: the first name below `rollmill`, or a package of environments as a whole."""
    return parts[1].removesuffix(".py") if parts[0] == "rollmill" else parts[0]


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rollmill"):
            names = [node.module] if node.module != "rollmill" else [f"rollmill.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("rollmill")]
        else:
            continue
        found |= {room_of(name.split(".")) for name in names if name != "rollmill"}
    return found


def test_imports_point_downwards():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    upward = [
        f"{path.relative_to(SOURCE)} imports {room}"
        for path in files
        for room in imports(path)
        if LEVEL[room] > LEVEL[room_of(path.relative_to(SOURCE).parts)]
    ]
    assert not upward


def test_no_modules_import_each_other_in_a_circle():
    """Also not inside functions: what hides a circle does not remove it."""
    modules = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    wanted = {name: modules_imported(path, modules) for name, path in modules.items()}
    while free := [name for name, others in wanted.items() if not others & wanted.keys()]:
        for name in free:
            del wanted[name]
    circle = {name for name in wanted if any(name in others for others in wanted.values())}
    assert not circle


def modules_imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


def test_the_core_does_not_know_the_families():
    for path in (SOURCE / "rollmill").rglob("*.py"):
        assert "rollmill_envs" not in path.read_text(), path


def test_algorithms_know_nothing_of_transport_or_environments():
    """They name their store in the recipe, and nothing else of it."""
    for path in (SOURCE / "rollmill" / "algorithms").glob("*.py"):
        assert not imports(path) & {"transport", "envs", "launch", "persist"}, path.name


def test_stores_transport_and_envs_never_import_algorithms():
    for part in ("stores", "transport", "envs", "models"):
        for path in (SOURCE / "rollmill" / part).rglob("*.py"):
            assert "algorithms" not in imports(path), path


def test_file_names_say_one_thing_each():
    names = [path.stem for path in SOURCE.rglob("*.py") if path.parent.name != "cli" and path.stem != "__init__"]
    assert not set(names) & {"utils", "common", "misc", "helpers"}
    assert not [name for name, count in Counter(names).items() if count > 1 and name != "config"]


def test_reports_and_observers_work_without_torch():
    code = "import sys; import rollmill.report.runs, rollmill.console.standard; assert 'torch' not in sys.modules"
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
