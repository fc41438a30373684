"""The table of a profile: per process and function the seconds and the share of the wall time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import count, shares
from rollmill.profiling.span import Usage
from rollmill.profiling.stacks import Sampled

MOST_ROWS = 12  # per process; the rest is summed up


def rows_of(samples: Sequence[Sampled]) -> list[dict[str, Any]]:
    """A row per process and function, in the order of the processes, the largest first."""
    rows: list[dict[str, Any]] = []
    for sampled in samples:
        sums: defaultdict[str, float] = defaultdict(float)
        for stack in sampled.stacks:
            if not stack.is_idle:
                sums[stack.function] += stack.seconds
        largest = sorted(sums.items(), key=lambda item: -item[1])
        if rest := sum(seconds for _, seconds in largest[MOST_ROWS:]):
            largest[MOST_ROWS:] = [("all else", rest)]
        rows += [
            {"process": sampled.place, "function": function, "seconds": seconds, "share": sampled.share(seconds)}
            for function, seconds in largest
        ]
    return rows


def processes_of(samples: Sequence[Sampled], used: Usage) -> list[dict[str, Any]]:
    """A row per process with its CPU seconds and the share of the time in which its main thread waited.

    Processes that were not sampled, such as simulators, are summed up by name.
    """
    rows = [
        {"process": sampled.place, "cpu_seconds": used[sampled.pid][1], "waiting": sampled.share(sampled.waiting)}
        for sampled in samples
        if sampled.pid in used
    ]
    others: defaultdict[str, list[float]] = defaultdict(list)
    for pid in used.keys() - {sampled.pid for sampled in samples}:
        name, seconds = used[pid]
        others[name].append(seconds)
    return rows + [
        {"process": name if len(each) == 1 else f"{name} × {len(each)}", "cpu_seconds": sum(each), "waiting": None}
        for name, each in sorted(others.items())
        if sum(each)
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
