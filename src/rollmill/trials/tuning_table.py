"""The table of the setups that were measured, and what it means."""

from __future__ import annotations

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import count
from rollmill.trials.contest import LEAST_GAIN, Contest, Entry

# "idle" is of the learner and, on average, of the workers
HEAD = ("", "runtime", "roles", "groups × size", "threads", "steps/s", "ratio", "idle", "learn", "results")


def table(contest: Contest) -> list[str]:
    """A line per setup, best first; `>` marks the fastest and `=` the config as it is."""
    ranking = contest.ranking()
    rows = [HEAD, *(_row(entry, contest) for entry in ranking if not entry.failed)]
    if contest.base.setup.is_asynchronous:
        rows = [row[:-1] for row in rows]  # there are no results to compare
    failed = [f"    {entry.setup}: {entry.outcome}" for entry in ranking if entry.failed]
    return text_table(rows, left=(0, 1, 2, 9)) + failed


def _row(entry: Entry, contest: Contest) -> tuple[str, ...]:
    setup, base = entry.setup, contest.base
    return (
        (">" if entry is contest.winner() else " ") + ("=" if entry is base else " "),
        setup.place,
        setup.roles,
        f"{setup.groups} × {setup.group_size}",
        str(setup.learner_threads),
        count(entry.rate),
        ratio_text(entry, base) or "-",
        _idle(entry),
        _percent(entry.shares.get("learn")),
        setup.effect(base.setup),
    )


def ratio_text(entry: Entry, base: Entry) -> str:
    """Such as 1.10, or ~1.10 if it comes from short trials; nothing where there is none."""
    ratio = entry.ratio(base)
    return "" if ratio is None else f"{'' if entry.is_final(base) else '~'}{ratio:.2f}"


def _idle(entry: Entry) -> str:
    """Of learner and workers; in one process there is no waiting."""
    shares = entry.shares
    if entry.setup.kind == "serial" or not {"learn", "env", "inference"} <= shares.keys():
        return _percent(shares.get("wait"))
    return f"{_percent(1 - shares['learn'])}, {_percent(1 - shares['env'] - shares['inference'])}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{max(share, 0.0) * 100:.0f}%"


def remarks(contest: Contest) -> list[str]:
    """What the words of the table mean, as far as they occur in it, and what it doesn't show."""
    ranking, base = contest.ranking(), contest.base
    lines = ["steps/s and ratio: medians of the finals; idle: learner, workers on average"]
    if any(ratio_text(entry, base).startswith("~") for entry in ranking):
        lines.append("~: of one short trial each, at another moment; not to be compared with ratios of the finals")
    effects = {entry.setup.effect(base.setup) for entry in ranking}
    meanings = {
        "last bits": "gradients of convolutions depend on learner threads",
        "other episodes": "episodes are seeded by group",
        "other batch": "another number of environments: another learning problem",
    }
    if meant := [f"{word}: {text}" for word, text in meanings.items() if word in effects]:
        lines.append("results: " + "; ".join(meant))
    if contest.untried:
        tried = f"{contest.candidates - contest.untried} of {contest.candidates} candidates were tried"
        price = f"all of them take about --seconds {contest.seconds_for_all}"
        lines.append(f"{tried}, {contest.untried} were not tried for want of time; {price}")
    return lines


def verdict(contest: Contest) -> list[str]:
    """Which is the fastest, in a line."""
    winner, tried = contest.winner(), f"fastest of the {len(contest.entries)} tried"
    if winner is None:
        return []
    if winner is contest.base:
        return [f"the config's own setting is the {tried}: no other is faster by {LEAST_GAIN - 1:.0%} or more"]
    return [f"{tried}: {winner.setup}"]
