"""Numbers of a run in words, the same on the bar, in plain lines and in the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rollmill.events import Progress, WorkerReplaced

UNKNOWN = "-"
TIME_SHARES = ("env", "inference", "learn", "wait")
OVERLAPPING = {"learner": ("learn", "wait"), "workers": ("env", "inference")}
ROUNDING = 1e-3  # of shares that add up to one


def amount(value: float | None) -> str:
    """A return or an episode length for display: `487.3`, `-0.021`, `12,345`."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 or size == 0 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def decimals(value: float | None, digits: int) -> str:
    """A number with a fixed count of decimals, so that it keeps its place on the screen."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """A number of steps: `31,744`, from ten million on `12.35M`."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.2f}M"


def some(number: float, thing: str) -> str:
    """A number of things: `1 episode`, `20 episodes`."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"


def clock(seconds: float | None) -> str:
    """A duration: `0:07`, `12:30`, `3:04:05`."""
    if seconds is None:
        return "-:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def cut(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shares(parts: Mapping[str, float | None]) -> str:
    """Where the time goes: `env 31%  inference 22%  learn 40%  wait  7%`; empty if nothing is known.

    Where workers don't wait for the learner, theirs apart: `learn 82%  wait 18%; workers: env 61%  inference 12%`.
    """
    own, *apart = share_groups(parts).items()
    return "; ".join([percentages(own[1]), *(f"{whose}: {percentages(group)}" for whose, group in apart)])


def share_groups(parts: Mapping[str, float | None]) -> dict[str, dict[str, float]]:
    """The shares of the time that belong together, by whose time it is.

    Workers that run while the learner learns spend the same time a second time. Then all shares add up to more than
    one, but those of the learner alone, and those of the workers alone, don't.
    """
    known = {name: share for name in TIME_SHARES if (share := parts.get(name)) is not None}
    if sum(known.values()) <= 1.0 + ROUNDING:
        return {"wall time": known}
    return {whose: {name: known[name] for name in names if name in known} for whose, names in OVERLAPPING.items()}


def percentages(parts: Mapping[str, float | None]) -> str:
    """Shares by name: `learner 12%  workers  4%`; those that are not known are left out."""
    return "  ".join(f"{name} {share * 100:2.0f}%" for name, share in parts.items() if share is not None)


def takeover(progress: Progress) -> str:
    """Where a resumed run takes over: `continues after update 103, 210,944 steps`; empty for one that begins."""
    if not progress.updates:
        return ""
    return f"continues after update {count(progress.updates)}, {count(progress.env_steps)} steps"


def replacement(event: WorkerReplaced) -> str:
    """A worker's replacement: `replaced after 1.3 s, 0.4 s of it replaying episodes: killed by SIGKILL`."""
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    replay = f", {event.replay_seconds:.1f} s of it replaying episodes"
    reason = " ".join(event.reason.split())
    return f"replaced after {event.seconds:.1f} s{replay}{again}: {reason}"
