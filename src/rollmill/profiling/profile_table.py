"""The table of a profile: per process and function the seconds and the share of the wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.console.text_table import text_table
from rollmill.launch.sampler import WAITING
from rollmill.observe.phrases import count, shares
from rollmill.profiling.stacks import Sampled

MOST_ROWS = 12  # per process; the rest is summed up


def rows_of(samples: Sequence[Sampled]) -> list[dict[str, Any]]:
    """A row per process and function, in the order of the processes, the largest first."""
    rows: list[dict[str, Any]] = []
    for sampled in samples:
        sums: dict[str, float] = {}
        for stack in sampled.stacks:
            if not stack.is_idle:
                sums[stack.function] = sums.get(stack.function, 0.0) + stack.seconds
        largest = sorted(sums.items(), key=lambda item: -item[1])
        kept, rest = largest[:MOST_ROWS], sum(seconds for _, seconds in largest[MOST_ROWS:])
        wall = max(sampled.seconds, 1e-9)
        rows += [
            {"process": sampled.place, "function": function, "seconds": seconds, "share": seconds / wall}
            for function, seconds in [*kept, *([("all else", rest)] if rest else [])]
        ]
    return rows


def processes_of(samples: Sequence[Sampled], used: Mapping[int, tuple[str, float]]) -> list[dict[str, Any]]:
    """A row per process with its CPU seconds and the share of the time in which its main thread waited.

    Processes that were not sampled, such as simulators, are summed up by name.
    """
    known = {sampled.pid: sampled for sampled in samples}
    rows: list[dict[str, Any]] = []
    others: dict[str, tuple[int, float]] = {}
    for pid, (name, seconds) in used.items():
        if pid in known:
            sampled = known[pid]
            waits = sum(stack.seconds for stack in sampled.stacks if stack.function.startswith(WAITING))
            waiting = waits / max(sampled.seconds, 1e-9)
            rows.append({"process": sampled.place, "cpu_seconds": seconds, "waiting": waiting})
        else:
            number, total = others.get(name, (0, 0.0))
            others[name] = number + 1, total + seconds
    rows.sort(key=lambda row: (row["process"] != "main", row["process"]))
    return rows + [
        {"process": name if number == 1 else f"{name} × {number}", "cpu_seconds": seconds, "waiting": None}
        for name, (number, seconds) in others.items()
        if seconds
    ]


def lines_of(record: Mapping[str, Any]) -> list[str]:
    """The whole profile for people."""
    elapsed, cores = record["seconds"], record["cores"]
    duration = f"{elapsed:.1f} s"
    if record["is_interrupted"]:
        duration = f"interrupted after {duration} of {record['wanted_seconds']:g} s"
    heading = f"{record['title']}: {duration}, {count(record['steps_per_second'])} steps/s"
    functions = [("process", "function", "seconds", "share")]
    last = ""
    for row in record["functions"]:
        place, last = "" if row["process"] == last else row["process"], row["process"]
        functions.append((place, row["function"], f"{row['seconds']:.2f}", f"{row['share'] * 100:.1f}%"))
    used = sum(process["cpu_seconds"] for process in record["processes"])
    processes = [("process", "CPU seconds", "of a core", "waiting")]
    for row in record["processes"]:
        waiting = "-" if row["waiting"] is None else f"{row['waiting'] * 100:.0f}%"
        share = f"{row['cpu_seconds'] / elapsed * 100:.0f}%"
        processes.append((row["process"], f"{row['cpu_seconds']:.2f}", share, waiting))
    processes.append(("all", f"{used:.2f}", f"{used / elapsed * 100:.0f}%", ""))
    idle = max(0.0, 1.0 - used / (elapsed * cores))
    lines = [heading, "", *text_table(functions, left=(0, 1)), "", *text_table(processes)]
    lines[-1] += f"  {cores} cores idle {idle * 100:.0f}%"
    if record["clocks"]:
        lines.append(f"by the components' own clocks: {shares(record['clocks'])}")
    lines.append(f"sampling took {record['overhead'] * 100:.1f} % of a core")
    return lines
