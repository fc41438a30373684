"""The table of a profile: per process, component and activity the seconds and the share of the wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.observe.phrases import count, shares
from rollmill.profiling.stacks import IDLE_THREADS, Sampled
from rollmill.sampling import WAITING

HEAD = ("process", "component", "activity", "seconds", "share")
LEAST_SHARE = 0.002  # of the wall time; what took less is summed up


def rows_of(samples: Sequence[Sampled]) -> list[dict[str, Any]]:
    """A row per process, component and activity, in the order of the processes, the largest first."""
    rows: list[dict[str, Any]] = []
    for sampled in samples:
        sums: dict[tuple[str, str], float] = {}
        for stack in sampled.stacks:
            if stack.activity != IDLE_THREADS:
                key = (stack.component, stack.activity)
                sums[key] = sums.get(key, 0.0) + stack.seconds
        wall = max(sampled.seconds, 1e-9)
        small = {key: seconds for key, seconds in sums.items() if seconds / wall < LEAST_SHARE}
        large = [(key, seconds) for key, seconds in sums.items() if key not in small]
        if small:
            large.append((("", "all else"), sum(small.values())))
        rows += [
            {
                "process": sampled.place,
                "component": component,
                "activity": activity,
                "seconds": seconds,
                "share": seconds / wall,
            }
            for (component, activity), seconds in sorted(large, key=lambda item: (not item[0][0], -item[1]))
        ]
    return rows


def processes_of(
    samples: Sequence[Sampled], used: Mapping[int, tuple[str, float]], elapsed: float
) -> list[dict[str, Any]]:
    """A row per process: CPU seconds, and the share of the time in which its main thread waited."""
    known = {sampled.pid: sampled for sampled in samples}
    rows = []
    for pid, (name, seconds) in used.items():
        sampled = known.get(pid)
        waited = None
        if sampled is not None:
            waits = sum(stack.seconds for stack in sampled.stacks if stack.activity.startswith(WAITING))
            waited = waits / max(sampled.seconds, 1e-9)
        if sampled is not None or seconds >= LEAST_SHARE * elapsed:
            place = name if sampled is None else sampled.place
            rows.append({"process": place, "pid": pid, "cpu_seconds": seconds, "waiting": waited})
    return sorted(rows, key=lambda row: (row["pid"] not in known, row["process"] != "main", row["process"]))


def heading(record: Mapping[str, Any]) -> str:
    """What was looked at, and for how long."""
    seconds = f"{record['seconds']:.1f} s"
    if record["is_interrupted"]:
        seconds = f"interrupted after {seconds} of {record['wanted_seconds']:g} s"
    return f"{record['title']}: {seconds}, {count(record['steps_per_second'])} steps/s"


def lines_of(record: Mapping[str, Any]) -> list[str]:
    """The whole profile for people."""
    elapsed, cores = record["seconds"], record["cores"]
    cells = [HEAD, *(_cells(row) for row in record["activities"])]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = [heading(record), ""]
    last = ""
    for row in cells:
        if row[0] != last and last not in ("", HEAD[0]):
            lines.append("")
        shown = ("" if row[0] == last else row[0], *row[1:])
        last = row[0]
        padded = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(shown, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    lines += ["", f"{'process':<16}{'CPU seconds':>12}{'of a core':>11}{'waiting':>9}"]
    for process in _folded(record["processes"]):
        waiting = "-" if process["waiting"] is None else f"{process['waiting'] * 100:.0f}%"
        share = f"{process['cpu_seconds'] / elapsed * 100:.0f}%"
        lines.append(f"{process['process']:<16}{process['cpu_seconds']:>12.2f}{share:>11}{waiting:>9}")
    used = sum(process["cpu_seconds"] for process in record["processes"])
    idle = max(0.0, 1.0 - used / (elapsed * cores))
    lines.append(f"{'all':<16}{used:>12.2f}{f'{used / elapsed * 100:.0f}%':>11}   {cores} cores idle {idle * 100:.0f}%")
    if record["clocks"]:
        lines.append(f"by the components' own clocks: {shares(record['clocks'])}")
    lines.append(f"looking took {record['overhead'] * 100:.1f} % of a core")
    return lines


def _folded(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Processes of one name as one row with their sum, where the first of them stands."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["process"], []).append(row)
    return [
        same[0]
        if len(same) == 1
        else {
            "process": f"{name} × {len(same)}",
            "cpu_seconds": sum(row["cpu_seconds"] for row in same),
            "waiting": None,
        }
        for name, same in kinds.items()
    ]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["process"], row["component"], row["activity"], f"{row['seconds']:.2f}", f"{row['share'] * 100:.1f}%"
