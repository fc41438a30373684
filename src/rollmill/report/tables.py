"""The tables of the page, and HTML from Python values: what isn't markup is escaped, so that no name becomes code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rollmill.observe.phrases import TIME_SHARES, amount, count, share_groups, some
from rollmill.report.charts import baselines
from rollmill.report.groups import Group, Spread, differences, spread
from rollmill.report.run_record import Evaluation, Record

UNKNOWN = "–"
_VOID = {"meta", "img", "input", "br"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: str | None, **attributes: str | int | bool | None) -> Markup:
    """An element; None and False leave an attribute out, `class_` is class and `data_x` is data-x."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escape(str(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*content)}</{name}>")


def join(*content: str | None) -> Markup:
    """Pieces one after the other, escaped where they are plain text."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(piece) for piece in content if piece))


def group_table(groups: Sequence[Group], colours: Sequence[int]) -> Markup:
    """One row per group: what it reached, and how fast."""
    head = ("Group", "Seeds", "Final return", "Best", "Greedy", "Random", "Steps", "Steps/s", "Minutes", "Status")
    rows = []
    for group, colour in zip(groups, colours, strict=True):
        label = tag("a", swatch(colour), group.label, href=f"#group-{colour}")
        seconds = [value / 60 for value in group.numbers("throughput", "seconds")]
        rows.append(
            [
                label,
                str(len(group.runs)),
                with_interval(spread(group.numbers("returns", "mean_100"))),
                with_interval(spread(group.numbers("returns", "best_mean_100"))),
                with_interval(spread(group.numbers("returns", "greedy"))),
                _known(baselines(group).get("random policy"), amount),
                _mean(group.numbers("env_steps"), count),
                _mean(group.numbers("throughput", "steps_per_second"), count),
                _mean(seconds, minutes),
                statuses(group),
            ]
        )
    return table(head, rows, "Results by group")


def run_table(group: Group) -> Markup:
    """One row per run, with all that is needed to identify and to repeat it."""
    results = ("Seed", "Status", "Final return", "Best", "Greedy", "Steps", "Steps/s", "Minutes")
    head = (*results, "Parameters", "Resume", "Commit", "Failures", "Folder")
    return table(head, [_run_row(run) for run in group.runs], f"Runs of {group.label}")


def difference_table(groups: Sequence[Group], colours: Sequence[int]) -> Markup:
    """The settings in which the groups differ."""
    rows = [
        [tag("code", key), *(tag("code", setting(value)) for value in values)]
        for key, values in differences(groups).items()
    ]
    if not rows:
        return tag("p", "No setting differs.")
    heads = [join(swatch(colour), group.label) for group, colour in zip(groups, colours, strict=True)]
    return table(("Setting", *heads), rows, "Settings that differ", is_numeric=False)


def player_table(group: Group) -> Markup:
    """The newest evaluation of each run, policy and baselines, a column per run; empty if there is none."""
    runs = [run for run in group.runs if run.evaluated.players]
    if not runs:
        return Markup()
    found = [{player.label: player for player in run.evaluated.players} for run in runs]
    labels = dict.fromkeys(label for players in found for label in players)
    rows = [[label, *(with_interval(players.get(label)) for players in found)] for label in labels]
    return table(("Evaluation", *(f"Seed {run.seed}" for run in runs)), rows, f"Evaluations of {group.label}")


def config_list(group: Group) -> Markup:
    """Every setting, folded."""
    lines = "\n".join(f"{key}: {setting(value)}" for key, value in group.config.items() if key != "seed")
    return tag("details", tag("summary", "All settings"), tag("pre", lines or "config.yaml can't be read"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, is_numeric: bool = True) -> Markup:
    """A table that scrolls sideways on a narrow screen, by keyboard too."""
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    inside = tag("table", tag("caption", caption, class_="unseen"), top, tag("tbody", *body))
    kind = "scroll" if is_numeric else "scroll text"
    return tag("div", inside, class_=kind, tabindex=0, role="region", aria_label=caption)


def with_interval(value: Spread | Evaluation | None) -> Markup:
    """`182.1 [170.0, 194.2]`."""
    if value is None:
        return Markup(UNKNOWN)
    mean = tag("b", amount(value.mean))
    if value.low is None or value.high is None:
        return mean
    return join(mean, " ", tag("span", f"[{amount(value.low)}, {amount(value.high)}]", class_="interval"))


def statuses(group: Group) -> Markup:
    """How many of the runs are done, running and so on."""
    counts = Counter(run.status for run in group.runs)
    return join(*(badge(status, f"{times} {status}") for status, times in counts.items()))


def badge(status: str, text: str) -> Markup:
    """A status, coloured by whether it is a good one."""
    kind = {"done": "good", "running": "open", "interrupted": "open"}.get(status, "bad")
    return tag("span", text, class_=f"badge {kind}")


def swatch(colour: int) -> Markup:
    """The colour of a group."""
    return tag("span", class_=f"swatch s{colour % 8}", aria_hidden="true")


def setting(value: Any) -> str:
    """A value of a config as in a file."""
    return UNKNOWN if value is None else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def minutes(value: float) -> str:
    """A duration: `0.1`, `12.5`, `480`."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def time_shares(group: Group) -> dict[str, dict[str, float]]:
    """Where the time went, by whose time it is: share per activity, averaged over the runs."""
    shares = {name: spread(group.numbers("throughput", "time", name)) for name in TIME_SHARES}
    return share_groups({name: share.mean if share else None for name, share in shares.items()})


def _mean(values: Sequence[float], words: Callable[[float], str]) -> str:
    mean = spread(values)
    return words(mean.mean) if mean else UNKNOWN


def _run_row(run: Record) -> list[str]:
    digest = run.summary.get("parameters_sha256")
    commit = (run.summary.get("process") or {}).get("git_commit")
    seconds = run.number("throughput", "seconds")
    reason = str(run.summary.get("reason") or "")
    return [
        UNKNOWN if run.seed is None else str(run.seed),
        tag("span", badge(run.status, run.status), title=reason or None),
        *(_known(run.number("returns", key), amount) for key in ("mean_100", "best_mean_100", "greedy")),
        _known(run.number("env_steps"), count),
        _known(run.number("throughput", "steps_per_second"), count),
        UNKNOWN if seconds is None else minutes(seconds / 60),
        tag("code", str(digest)[:12], title=str(digest)) if digest else UNKNOWN,
        _grade(str(run.summary.get("resume_grade") or "")),
        tag("code", _short(str(commit)), title=str(commit)) if commit else UNKNOWN,
        _failures(run),
        tag("code", str(run.path)),
    ]


def _known(value: float | None, words: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else words(value)


def _grade(grade: str) -> str:
    """The grade in a few words; the reason is a whole sentence, too wide for a column."""
    short, colon, _ = grade.partition(":")
    return tag("span", short, title=grade, class_="grade") if colon else grade or UNKNOWN


def _short(commit: str) -> str:
    name, plus, changes = commit.partition("+")
    return name[:10] + plus + changes


def _failures(run: Record) -> str:
    failures = run.summary.get("failures")
    if not isinstance(failures, dict):
        return UNKNOWN
    workers = failures.get("workers")
    parts = [f"{some(len(workers), 'worker')} replaced"] if isinstance(workers, list) and workers else []
    for key, words in _FAILURES.items():
        if failures.get(key):
            parts.append(f"{failures[key]} {words[failures[key] != 1]}")
    return ", ".join(parts) or "none"


_FAILURES = {  # one, several
    "environments": ("of environments", "of environments"),
    "quarantined": ("environment quarantined", "environments quarantined"),
}
