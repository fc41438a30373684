"""The table of the setups that were measured, and what it means."""

from __future__ import annotations

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import count
from rollmill.trials.search import LEAST_GAIN, Search, Trial

# "idle" is of the learner and, on average, of the workers
HEAD = ("", "runtime", "roles", "groups × size", "threads", "steps/s", "ratio", "idle", "learn", "results")


def table(search: Search) -> list[str]:
    """A line per setup, best first; `>` marks the fastest and `=` the config as it is."""
    ranking = search.ranking()
    rows = [HEAD, *(_row(trial, search) for trial in ranking if not trial.failed)]
    if search.base.setup.is_asynchronous:
        rows = [row[:-1] for row in rows]  # there are no results to compare
    failed = [f"    {trial.setup}: {trial.outcome}" for trial in ranking if trial.failed]
    return text_table(rows, left=(0, 1, 2, 9)) + failed


def _row(trial: Trial, search: Search) -> tuple[str, ...]:
    setup, base = trial.setup, search.base
    return (
        (">" if trial is search.winner() else " ") + ("=" if trial is base else " "),
        setup.place,
        setup.roles,
        f"{setup.groups} × {setup.group_size}",
        str(setup.learner_threads),
        count(trial.rate),
        ratio_text(trial, base) or "-",
        _idle(trial),
        _percent(trial.shares.get("learn")),
        setup.effect(base.setup),
    )


def ratio_text(trial: Trial, base: Trial) -> str:
    """Such as 1.10, or ~1.10 if it comes from short trials; nothing where there is none."""
    ratio = trial.ratio(base)
    return "" if ratio is None else f"{'' if trial.is_final(base) else '~'}{ratio:.2f}"


def _idle(trial: Trial) -> str:
    """Of learner and workers; in one process there is no waiting."""
    shares = trial.shares
    if trial.setup.kind == "serial" or not {"learn", "env", "inference"} <= shares.keys():
        return _percent(shares.get("wait"))
    return f"{_percent(1 - shares['learn'])}, {_percent(1 - shares['env'] - shares['inference'])}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{max(share, 0.0) * 100:.0f}%"


def remarks(search: Search) -> list[str]:
    """What the words of the table mean, as far as they occur in it, and what it doesn't show."""
    ranking, base = search.ranking(), search.base
    lines = ["steps/s and ratio: medians of the finals; idle: learner, workers on average"]
    if any(ratio_text(trial, base).startswith("~") for trial in ranking):
        lines.append("~: of one short trial each, at another moment; not to be compared with ratios of the finals")
    effects = {trial.setup.effect(base.setup) for trial in ranking}
    meanings = {
        "last bits": "gradients of convolutions depend on learner threads",
        "other episodes": "episodes are seeded by group",
        "other batch": "another number of environments: another learning problem",
    }
    if meant := [f"{word}: {text}" for word, text in meanings.items() if word in effects]:
        lines.append("results: " + "; ".join(meant))
    if search.untried:
        tried = f"{search.candidates - search.untried} of {search.candidates} candidates were tried"
        price = f"all of them take about --seconds {search.seconds_for_all}"
        lines.append(f"{tried}, {search.untried} were not tried for want of time; {price}")
    return lines


def verdict(search: Search) -> list[str]:
    """Which is the fastest, in a line."""
    winner, tried = search.winner(), f"fastest of the {len(search.trials)} tried"
    if winner is None:
        return []
    if winner is search.base:
        return [f"the config's own setting is the {tried}: no other is faster by {LEAST_GAIN - 1:.0%} or more"]
    return [f"{tried}: {winner.setup}"]
