"""Medians, spread and ratios of a set of paired runs, as a table, JSON and Markdown; what all results files share."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bystanders import QUIET_CORES
from benchmarks.machine import ROOT
from benchmarks.workloads import PEERS, WORKLOADS, Workload

RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "benchmarks" / "README.md"
RATIOS = "<!-- results: written by run.py -->", "<!-- end of results -->"  # where they stand in the README
EFFICIENCIES = "<!-- results: written by efficiency.py -->", "<!-- end of efficiency -->"
HEADER = ("workload", "peer", "unit", "ours", "theirs", "ours faster by", "goal", "calibration ms", "others, cores")

Spread = dict[str, float | int]  # median, min, max, count
Record = dict[str, Any]  # a results file


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, extremes and number of the values that exist; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known), "count": len(known)}


def summarise(workload: Workload, pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per peer; the ratio is the median of the ratios within the pairs."""
    summary = []
    for peer in dict.fromkeys(pair["peer"] for pair in pairs):
        own = [pair for pair in pairs if pair["peer"] == peer]
        runs = [pair[side] for pair in own for side in ("ours", "theirs")]
        complete = [pair for pair in own if pair["ours"]["value"] and pair["theirs"]["value"]]
        summary.append(
            {
                "peer": peer,
                "pairs": len(own),
                "ours": spread(pair["ours"]["value"] for pair in own),
                "theirs": spread(pair["theirs"]["value"] for pair in own),
                "speedup": spread(workload.speedup(p["ours"]["value"], p["theirs"]["value"]) for p in complete),
                "goal": workload.goals.get(peer),
                "calibration_ms": spread(ms for run in runs for ms in run["calibration_ms"]),
                "other_cores": spread(run["other_cores"] for run in runs),
            }
        )
    return summary


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half, the values at its edges counted in part."""
    ordered, cut = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(ordered) - cut) - max(i, cut)) for i in range(len(ordered))]
    return sum(w * v for w, v in zip(weights, ordered, strict=True)) / sum(weights)


def with_interval(values: Sequence[float]) -> dict[str, float]:
    """Interquartile mean over seeds, and its 95 % interval by resampling the seeds."""
    draw = random.Random(0)
    means = sorted(interquartile_mean(draw.choices(values, k=len(values))) for _ in range(2000))
    return {"iqm": interquartile_mean(values), "low": means[50], "high": means[-51]}


def returns_lines(record: Record) -> list[str]:
    """What both sides had learned at the end, where a workload measures that."""
    goal, lines = WORKLOADS[record["workload"]].return_goal, []
    for peer in dict.fromkeys(pair["peer"] for pair in record["pairs"]) if goal else ():
        own = [pair for pair in record["pairs"] if pair["peer"] == peer]
        sides = [[pair[side]["return_at_end"] for pair in own] for side in ("ours", "theirs")]
        if any(value is None for values in sides for value in values):
            continue
        ours, theirs = map(with_interval, sides)
        told = [f"{side['iqm']:.0f} [{side['low']:.0f}, {side['high']:.0f}]" for side in (ours, theirs)]
        lines.append(
            f"- {record['workload']}: interquartile mean of the return over {len(own)} seeds [95 % interval]: "
            f"ours {told[0]}, {PEERS[peer].title} {told[1]}: {ours['iqm'] / theirs['iqm']:.2f} × (goal ≥ {goal} ×); "
            + "; ".join(
                f"{name} {', '.join(f'{value:.0f}' for value in values)}"
                for name, values in zip(("ours", "theirs"), sides, strict=True)
            )
        )
    return lines


def rows(record: Record) -> list[tuple[str, ...]]:
    """The table's cells, below `HEADER`."""
    return [
        (
            record["workload"],
            PEERS[entry["peer"]].title,
            record["unit"],
            cell(entry["ours"], entry["pairs"]),
            cell(entry["theirs"], entry["pairs"]),
            cell(entry["speedup"], entry["pairs"], suffix=" ×"),
            f"≥ {entry['goal']} ×" if entry["goal"] else "–",
            range_of(entry["calibration_ms"]),
            range_of(entry["other_cores"]) + (" (disturbed)" if entry["other_cores"]["max"] >= QUIET_CORES else ""),
        )
        for entry in record["summary"]
    ]


def show(header: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    """A table on the terminal."""
    shown = Table(*header)
    for cells in body:
        shown.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def save(record: Record, text: str, folder: Path) -> None:
    """Writes `<workload>.json` and, with the same for reading, `<workload>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record['workload']}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    (folder / f"{record['workload']}.md").write_text(text)


def saved_pairs(workload: str) -> list[dict[str, Any]]:
    """The pairs of runs in the results file of a workload."""
    file = RESULTS / f"{workload}.json"
    pairs: list[dict[str, Any]] = json.loads(file.read_text())["pairs"] if file.exists() else []
    return pairs


def markdown(record: Record) -> str:
    """A results file for reading."""
    lines = [
        f"# {record['workload']}",
        "",
        record["title"],
        "",
        *table(HEADER, rows(record)),
        "",
        *returns_lines(record),
        *facts(record),
    ]
    header = ("round", "peer", "seed", "ours", "theirs", "calibration ms", "others, cores")
    body = [
        (
            str(pair["round"]),
            pair["peer"],
            str(pair["seed"]),
            _number(pair["ours"]["value"]),
            _number(pair["theirs"]["value"]),
            "; ".join(" → ".join(f"{ms:.0f}" for ms in pair[side]["calibration_ms"]) for side in ("ours", "theirs")),
            "; ".join(f"{pair[side]['other_cores']:.2f}" for side in ("ours", "theirs")),
        )
        for pair in record["pairs"]
    ]
    return "\n".join([*lines, "", "## Every pair", "", *table(header, body), ""])


def refresh_readme() -> None:
    """Puts the newest results of every workload into the README."""
    write_readme(RATIOS, HEADER, rows, WORKLOADS)


def write_readme(
    marks: tuple[str, str],
    header: Sequence[str],
    cells: Callable[[Record], list[tuple[str, ...]]],
    names: Iterable[str],
) -> None:
    """Puts a table of the newest results of these names between two marks of the README."""
    begin, end = marks
    files = [RESULTS / f"{name}.json" for name in names]
    records = [json.loads(file.read_text()) for file in files if file.exists()]
    before, _, rest = README.read_text().partition(begin)
    _, _, after = rest.partition(end)
    body = table(header, [row for record in records for row in cells(record)])
    origins = [line for record in records if record["workload"] in WORKLOADS for line in returns_lines(record)]
    origins += [
        f"- {_origin(record)}: [every run, machine and versions](results/{record['workload']}.md)" for record in records
    ]
    README.write_text("\n".join([before + begin, "", *body, "", *origins, "", end]) + after)


def _origin(record: Record) -> str:
    return f"`{record['command']}`, {record['date']}, commit {record['commit']}"


def facts(record: Record) -> list[str]:
    """Where a figure comes from, as the lines of a list."""
    machine = record["machine"]
    lines = [
        f"- {_origin(record)}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, "
        f"Python {machine['python']}; load average before the first run {record['load']:.1f}",
    ]
    for side, versions in record["versions"].items():
        lines.append(f"- {side}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    lines += [f"- {peer} skipped: {reason}" for peer, reason in record.get("skipped", {}).items()]
    return lines


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body)]


def cell(values: Spread | None, wanted: int, suffix: str = "") -> str:
    """Median and range, and how many of the `wanted` values there are if some are missing."""
    if values is None:
        return f"0 of {wanted} runs"
    missing = "" if values["count"] == wanted else f", {values['count']} of {wanted} runs"
    return f"{_number(values['median'])}{suffix} ({range_of(values)}{missing})"


def range_of(values: Spread | None) -> str:
    """Smallest and largest."""
    return f"{_number(values['min'])}–{_number(values['max'])}" if values else "–"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}".replace(",", " ")
