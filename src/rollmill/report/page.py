"""The report: one HTML page that contains everything it shows and loads nothing. `page.html` is what it looks like."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from rollmill.errors import Refused
from rollmill.observe.phrases import TIME_SHARES, amount, count, share_groups, some
from rollmill.persist.writing import write_atomically
from rollmill.report.charts import RANDOM, baselines, return_chart, speed_chart
from rollmill.report.groups import Group, differences, gather
from rollmill.report.media import MediaBudget, media_of
from rollmill.report.run_record import EvaluationResult, Record

GENERATOR = "rollmill report"  # marks a page that may be replaced
HERE = Path(__file__).parent
UNKNOWN = "–"
FAILURES = {  # one, several
    "environments": ("of environments", "of environments"),
    "quarantined": ("environment quarantined", "environments quarantined"),
}


def write_report(paths: Sequence[Path], out: Path, title: str | None = None) -> list[Group]:
    """Write the page about the runs; the groups that are on it."""
    groups = gather(paths)
    _refuse_others_file(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, draw_page(groups, title))
    except OSError as error:
        raise Refused(f"--out {out} can't be written: {error.strerror}: choose another file") from error
    return groups


def draw_page(groups: Sequence[Group], title: str | None = None) -> str:
    """The whole page as text."""
    environments: dict[str, list[tuple[int, Group]]] = {}
    for number, group in enumerate(groups):
        environments.setdefault(group.env, []).append((number, group))
    runs, budget = sum(len(group.runs) for group in groups), MediaBudget()
    data = json.dumps(_charts(environments), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _template().render(
        heading=title or _heading(groups, list(environments)),
        made=f"{some(len(groups), 'group')}, {some(runs, 'run')}, made {time.strftime('%Y-%m-%d %H:%M %Z')}",
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        data=data,
        groups=groups,
        environments=environments,
        differences=differences(groups),
        media=[media_of(group, budget) for group in groups],
    )


def _template() -> Template:
    """The page's template, with the words and look-ups that it uses."""
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    words = {"amount": amount, "count": count, "minutes": minutes, "setting": setting}
    environment.filters |= {name: _unless_unknown(function) for name, function in words.items()}
    environment.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    environment.globals |= {
        "generator": GENERATOR,
        "unknown": UNKNOWN,
        "random": RANDOM,
        "time_names": TIME_SHARES,
        "baselines": baselines,
        "by_label": by_label,
        "complaints": complaints,
        "count_statuses": lambda group: Counter(run.status for run in group.runs),
        "failures": failures,
        "settings": settings,
        "time_shares": time_shares,
    }
    return environment.get_template("page.html")


def _charts(environments: Mapping[str, Sequence[tuple[int, Group]]]) -> dict[str, Any]:
    """What the script draws, by the names that the figures have: groups that learned the same thing, and each alone."""
    charts = {}
    for members in environments.values():
        numbers, groups = zip(*members, strict=True)
        charts[f"returns-{numbers[0]}"] = return_chart(groups, numbers, is_detailed=False)
        charts[f"speeds-{numbers[0]}"] = speed_chart(groups, numbers)
        for number, group in members:
            charts[f"group-returns-{number}"] = return_chart([group], [number], is_detailed=True)
    return charts


def _unless_unknown(words: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: UNKNOWN if value is None else words(value)


def minutes(seconds: float) -> str:
    """A duration in minutes: `0.12`, `12.5`, `480`."""
    value = seconds / 60
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def setting(value: Any) -> str:
    """A value of a config as in a file."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings(group: Group) -> str:
    """Every setting of a group, one per line."""
    shown = _unless_unknown(setting)
    lines = [f"{key}: {shown(value)}" for key, value in group.config.items() if key != "seed"]
    return "\n".join(lines) or "config.yaml can't be read"


def complaints(group: Group) -> list[str]:
    """What is wrong with the runs of a group."""
    found = [f"{run.path}: {text}" for run in group.runs for text in run.complaints]
    return found + [f"{run.path} ({run.status}) has made no update" for run in group.runs if run.is_empty]


def by_label(runs: Sequence[Record]) -> dict[str, list[EvaluationResult | None]]:
    """The newest evaluation of each run: policy and baselines, with the result in every run."""
    found = [{player.label: player for player in run.players} for run in runs]
    labels = dict.fromkeys(label for players in found for label in players)
    return {label: [players.get(label) for players in found] for label in labels}


def time_shares(group: Group) -> dict[str, dict[str, float]]:
    """Where the time went, by whose time it is: share per activity, averaged over the runs."""
    shares = share_groups({name: group.mean("throughput", "time", name) for name in TIME_SHARES})
    return {whose: parts for whose, parts in shares.items() if parts}


def failures(run: Record) -> str:
    """How many workers and environments of a run failed."""
    found = run.summary.get("failures")
    if not isinstance(found, dict):
        return UNKNOWN
    workers = found.get("workers")
    parts = [f"{some(len(workers), 'worker')} replaced"] if isinstance(workers, list) and workers else []
    parts += [f"{found[key]} {words[found[key] != 1]}" for key, words in FAILURES.items() if found.get(key)]
    return ", ".join(parts) or "none"


def _heading(groups: Sequence[Group], environments: Sequence[str]) -> str:
    labels = [group.label for group in groups]
    shown = labels if len(labels) <= 4 else [*labels[:3], f"{len(labels) - 3} more"]
    return f"{', '.join(shown)} on {', '.join(environments)}"


def _refuse_others_file(out: Path) -> None:
    """A report may be replaced by a newer one; nothing else is."""
    if out.is_dir():
        raise Refused(f"--out {out} is a folder: name a file in it, such as {out / 'report.html'}")
    if out.exists():
        with out.open("rb") as file:
            is_report = GENERATOR.encode() in file.read(4096)
        if not is_report:
            raise Refused(f"--out {out} exists and is not a report: choose another file, or remove it")
