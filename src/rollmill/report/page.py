"""The report: one HTML page that contains everything it shows and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.errors import Refused
from rollmill.observe.phrases import TIME_SHARES
from rollmill.persist.writing import write_atomically
from rollmill.report.charts import return_chart, speed_chart
from rollmill.report.groups import Group, gather
from rollmill.report.media import MediaBudget, Medium, media_of
from rollmill.report.tables import (
    Markup,
    config_list,
    difference_table,
    group_table,
    join,
    player_table,
    run_table,
    statuses,
    swatch,
    tag,
    time_shares,
)

GENERATOR = "rollmill report"  # marks a page that may be replaced
HERE = Path(__file__).parent


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
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    heading = title or _heading(groups)
    charts: dict[str, Any] = {}
    sections = [_environment(env, groups, charts) for env in dict.fromkeys(group.env for group in groups)]
    budget = MediaBudget()
    details = [_group(group, number, charts, budget) for number, group in enumerate(groups)]
    runs = sum(len(group.runs) for group in groups)
    made = f"{_plural(len(groups), 'group')}, {_plural(runs, 'run')}, made {time.strftime('%Y-%m-%d %H:%M %Z')}"
    body = tag(
        "main",
        tag("header", tag("h1", heading), tag("p", made, class_="quiet"), _axis_choice()),
        tag("noscript", tag("p", "The charts are drawn by a script in this page; the tables need none.")),
        *sections,
        _differences(groups),
        *details,
        _method(),
    )
    # Only the script and the style of this very page may run, and nothing may be fetched from anywhere.
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; media-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", heading),
        tag("style", Markup(style)),
    )
    data = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    scripts = join(tag("script", Markup(data), type="application/json", id="data"), tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head, tag('body', body, scripts), lang='en')}\n"


def _environment(env: str, groups: Sequence[Group], charts: dict[str, Any]) -> Markup:
    """The groups that learned the same thing, side by side."""
    numbers = [number for number, group in enumerate(groups) if group.env == env]
    here = [groups[number] for number in numbers]
    first = numbers[0]
    charts[f"returns-{first}"] = return_chart(here, numbers, is_detailed=False)
    charts[f"speeds-{first}"] = speed_chart(here, numbers)
    return tag(
        "section",
        tag("h2", env),
        _figure(f"returns-{first}", f"Learning curves on {env}", "Mean return of the last 100 episodes"),
        group_table(here, numbers),
        _figure(
            f"speeds-{first}", f"Throughput on {env}", "Throughput, agent decisions per second (mean over seeds)", "low"
        ),
    )


def _group(group: Group, number: int, charts: dict[str, Any], budget: MediaBudget) -> Markup:
    """One group in detail."""
    chart = f"group-returns-{number}"
    charts[chart] = return_chart([group], [number], is_detailed=True)
    complaints = [f"{run.path}: {text}" for run in group.runs for text in run.complaints]
    complaints += [f"{run.path} ({run.status}) has made no update" for run in group.runs if run.is_empty]
    what = "each seed, their mean and its interval" if len(group.runs) > 1 else "every episode, and the mean of 100"
    return tag(
        "section",
        tag("h2", swatch(number), group.label, tag("small", group.title), id=f"group-{number}"),
        tag("p", statuses(group)),
        *(tag("p", text, class_="complaint", role="note") for text in complaints),
        _figure(chart, f"Learning curves of {group.label}", f"Return: {what}"),
        _shares(group),
        run_table(group),
        player_table(group),
        _media(media_of(group, budget)),
        config_list(group),
    )


def _differences(groups: Sequence[Group]) -> Markup:
    if len(groups) == 1:
        return Markup()
    return tag("section", tag("h2", "What differs"), difference_table(groups, range(len(groups))))


def _figure(chart: str, name: str, caption: str, kind: str = "") -> Markup:
    """An empty place for a chart, which can be reached and read by keyboard."""
    help_text = f"{name}. With the focus here, the arrow keys move along the curve, Home and End jump."
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", class_="plot", tabindex=0, role="img", aria_label=help_text),
        tag("div", class_="keys"),
        tag("p", class_="unseen", aria_live="polite"),
        class_=f"chart {kind}".strip(),
        data_chart=chart,
    )


def _axis_choice() -> Markup:
    choices = [
        tag("label", tag("input", type="radio", name="axis", value=value, checked=value == "steps"), tag("span", text))
        for value, text in (("steps", "env steps"), ("minutes", "wall time"))
    ]
    return tag("fieldset", tag("legend", "Curves along", class_="unseen"), *choices, class_="choice")


def _shares(group: Group) -> Markup:
    """Where the time went, as a bar; one for the learner and one for the workers where neither waits for the other."""
    bars = [_share_bar(whose, shares) for whose, shares in time_shares(group).items() if shares]
    return tag("div", *bars, class_="shares") if bars else Markup()


def _share_bar(whose: str, shares: Mapping[str, float]) -> Markup:
    begin, parts, words = 0.0, [], []
    for name, share in shares.items():
        kind = f"share{TIME_SHARES.index(name)}"
        parts.append(tag("rect", x=f"{begin:.2%}", width=f"{share:.2%}", height=10, class_=kind))
        words.append(tag("span", tag("span", class_=f"swatch {kind}", aria_hidden="true"), f"{name} {share:.0%}"))
        begin += share
    bar = tag("svg", *parts, class_="bar", width="100%", height=10, aria_hidden="true")
    return join(tag("p", f"Where the time goes, of the {whose}: ", *words, class_="quiet words"), bar)


def _media(media: Sequence[Medium]) -> Markup:
    """Videos and pictures; the curve that replaces missing ones is drawn above already and hence folded."""
    shown = tag("div", *(_medium(medium) for medium in media), class_="media")
    if all(medium.file.name == "curve.png" for medium in media):
        return tag("details", tag("summary", "curve.png"), shown) if media else Markup()
    return shown


def _medium(medium: Medium) -> Markup:
    name = f"seed {medium.run.seed}: {medium.file.parent.name}/{medium.file.name}"
    if medium.uri is None:
        size = f"{medium.size / 1e6:.1f} MB"
        return tag("p", f"{medium.file} ({size}) is too large to be carried in the page", class_="quiet")
    if medium.is_video:
        shown = tag(
            "video",
            aria_label=name,
            src=medium.uri,
            controls=True,
            loop=True,
            muted=True,
            playsinline=True,
            preload="auto",
        )
    else:
        shown = tag("img", src=medium.uri, alt=name, loading="lazy")
    return tag("figure", shown, tag("figcaption", name), class_="medium")


def _method() -> Markup:
    lines = (
        "A group is all runs whose settings differ in nothing but the seed (and in what is shown, logged or saved).",
        "Curves: mean return of the last 100 episodes, raw returns as the environment gave them; one point per update.",
        "Bands and brackets: 95 % t-interval of the mean over seeds, mean ± t(n−1)·s/√n, on a common grid of steps or "
        "minutes, from three seeds on. It assumes normally distributed seeds; for three it is wide, as it should be.",
        "A run that is done keeps its last return to the end of its group's axis; one that ended early drops out.",
        "Final: last 100 episodes of training. Best: the highest such mean. Greedy: the finished policy, which takes "
        "its most likely action. Random: uniform actions, measured when the run began.",
        "Steps are agent decisions. Diamonds are evaluations, with their own interval over episodes.",
    )
    return tag("section", tag("details", tag("summary", "How to read this"), tag("ul", *(tag("li", x) for x in lines))))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _heading(groups: Sequence[Group]) -> str:
    labels = [group.label for group in groups]
    shown = labels if len(labels) <= 4 else [*labels[:3], f"{len(labels) - 3} more"]
    return f"{', '.join(shown)} on {', '.join(dict.fromkeys(group.env for group in groups))}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _refuse_others_file(out: Path) -> None:
    """A report may be replaced by a newer one; nothing else is."""
    if out.is_dir():
        raise Refused(f"--out {out} is a folder: name a file in it, such as {out / 'report.html'}")
    if out.exists():
        with out.open("rb") as file:
            is_report = GENERATOR.encode() in file.read(4096)
        if not is_report:
            raise Refused(f"--out {out} exists and is not a report: choose another file, or remove it")
