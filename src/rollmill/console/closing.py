"""A run's summary in words, for the end of training and for `rollmill show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.intervals import welch_half_width
from rollmill.observe.phrases import amount, clock, count, percentages, share_groups, some

MUCH_WAITING = 0.05  # of the wall time; above what an observer may hold the run up by default
SHORT = 60.0  # seconds of training; the first and last checkpoints come next to it, and are no share of less
# A difference below a tenth of the random mean is none worth the word, however sure it is.
MARGIN = 0.1
FEW_EPISODES = 10
WINDOW = 100  # episodes of which the summary keeps mean and deviation
ENDED_EARLY = ("interrupted", "failed", "died")


def closing_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary as aligned lines; what is missing is left out."""
    facts = {
        "status": _status(summary),
        "trained": _trained(summary),
        "return": _returns(summary),
        "evaluated": _evaluated(summary),
        "verdict": verdict(summary),
        "speed": _speed(summary),
        "time": _time(summary),
        "parameters": f"sha256 {digest[:16]}" if (digest := summary.get("parameters_sha256")) else "",
        "saved": _saved(summary),
        "resume": _resume(summary),
        "resumed": _resumed(summary),
        "failures": _failures(summary),
        "lost": "; ".join(f"{name}: {what}" for name, what in _part(summary, "losses").items()),
        "observers": _observers(summary),
        "flight log": _flight_log(summary),
        **_places(summary.get("run")),
    }
    title = summary.get("title")
    return [*([str(title)] if title else []), *(f"  {name:<11}{text}" for name, text in facts.items() if text)]


def _flight_log(summary: Mapping[str, Any]) -> str:
    """What the flight log cost, or why it ends early."""
    log = _part(summary, "flight_log")
    cost = f"{some(log['bytes'], 'byte')}, {log['cpu_share'] * 100:.2f}% of the time" if "bytes" in log else ""
    return str(log.get("lost") or cost)


def _evaluated(summary: Mapping[str, Any]) -> str:
    """The best of the evaluations during training."""
    best = _part(_part(summary, "evaluations"), "best")
    return f"{amount(best['mean'])} (best, at {count(best['env_steps'])} steps)" if best else ""


def _status(summary: Mapping[str, Any]) -> str:
    return ": ".join(str(summary[key]) for key in ("status", "reason") if summary.get(key))


def _trained(summary: Mapping[str, Any]) -> str:
    steps, frames = summary.get("env_steps"), summary.get("frames")
    parts = [some(steps, "env step")] if steps is not None else []
    if frames is not None and frames != steps:
        parts.append(some(frames, "frame"))
    numbers = {thing: summary.get(f"{thing}s") for thing in ("update", "episode")}
    parts += [some(number, thing) for thing, number in numbers.items() if number is not None]
    return ", ".join(parts)


def _returns(summary: Mapping[str, Any]) -> str:
    window = min(summary.get("episodes") or WINDOW, WINDOW)
    labels = {"mean_100": f"last {window}", "ema": "smoothed", "best_mean_100": "best"}
    returns = _part(summary, "returns")
    parts = [f"{amount(returns[key])} ({label})" for key, label in labels.items() if returns.get(key) is not None]
    if returns.get("greedy") is not None:
        played = returns.get("greedy_episodes")
        parts.append(f"{amount(returns['greedy'])} (greedy" + (f", {some(played, 'episode')})" if played else ")"))
    return ", ".join(parts)


def verdict(summary: Mapping[str, Any]) -> str:
    """What the last episodes say against those of the random policy, with both numbers.

    A difference is claimed where it exceeds the margin and Welch's 95 % interval leaves zero out. So a policy that
    never changed is taken for another in about one of twenty runs.
    """
    returns, baseline = summary.get("returns") or {}, summary.get("random_baseline") or {}
    reached, random = returns.get("mean_100", returns.get("ema")), baseline.get("return")
    episodes = summary.get("episodes") or 0
    if reached is None:
        return "unknown: no episode has ended"
    if random is None:
        return f"unknown: return {amount(reached)}, the random policy was not measured"
    played = baseline.get("episodes") or 0
    numbers = f"return {amount(reached)}, random policy {amount(random)} ({some(played, 'episode')})"
    if episodes < FEW_EPISODES:
        return f"too early to tell after {some(episodes, 'episode')}: {numbers}"
    spread, random_spread = returns.get("std_100"), baseline.get("std")
    if spread is None or random_spread is None:
        return f"unknown: {numbers}, how far single episodes differ is not known"
    gain, doubt = reached - random, welch_half_width((spread, random_spread), (min(episodes, WINDOW), played))
    if not abs(gain) > doubt:  # nor where either is no number
        return f"no difference from chance can be told: {numbers}, difference {amount(gain)} ± {amount(doubt)}"
    if abs(gain) <= MARGIN * abs(random):
        return f"not learned, about as good as chance: {numbers}"
    return f"learned: {numbers}" if gain > 0 else f"not learned, worse than chance: {numbers}"


def _speed(summary: Mapping[str, Any]) -> str:
    throughput = _part(summary, "throughput")
    rate, steps, frames = throughput.get("steps_per_second"), summary.get("env_steps"), summary.get("frames")
    parts = [f"{count(rate)} steps/s"] if rate is not None else []
    if rate is not None and steps and frames is not None and frames != steps:
        parts.append(f"{count(rate * frames / steps)} frames/s")
    if throughput.get("seconds") is not None:
        parts.append(f"{clock(throughput['seconds'])} in all")
    return ", ".join(parts)


def _time(summary: Mapping[str, Any]) -> str:
    groups = share_groups(_part(_part(summary, "throughput"), "time"))
    return "; ".join(f"of the {whose}: {percentages(group)}" for whose, group in groups.items() if group)


def _saved(summary: Mapping[str, Any]) -> str:
    """Checkpoints: how many, what they cost, and which failed."""
    checkpoints = _part(summary, "checkpoints")
    written, failed, share, seconds = (checkpoints.get(key) for key in ("written", "failed", "share", "seconds"))
    parts = [some(written, "checkpoint")] if written is not None else []
    wall = _part(summary, "throughput").get("seconds")
    if wall is not None and wall < SHORT and seconds is not None:
        parts.append(f"{seconds:.1f} s")
    elif share is not None:
        parts.append(f"{share * 100:.1f}% of the time")
    if failed:
        error = checkpoints.get("error")
        parts.append(f"{count(failed)} failed" + (f" ({error})" if error else ""))
    if checkpoints.get("last"):
        parts.append(f"the last is {checkpoints['last']}")
    return ", ".join(parts)


def _resume(summary: Mapping[str, Any]) -> str:
    """How to continue with a run that ended early, and how exactly that would continue it."""
    grade, run = summary.get("resume_grade") or "", summary.get("run")
    if run is None or summary.get("status") not in ENDED_EARLY:
        return str(grade)
    if not (_part(summary, "checkpoints").get("last") or (Path(run) / "checkpoints" / "latest").exists()):
        return str(grade)
    return f"rollmill train {run} --resume" + (f" ({grade})" if grade else "")


def _resumed(summary: Mapping[str, Any]) -> str:
    points = summary.get("resumed") or []
    if not points:
        return ""
    times = f"{len(points)} times, last " if len(points) > 1 else ""
    return f"{times}after update {count(points[-1].get('update'))} ({count(points[-1].get('env_steps'))} env steps)"


def _failures(summary: Mapping[str, Any]) -> str:
    """What failed and was rebuilt."""
    failures = _part(summary, "failures")
    workers = failures.get("workers") or []
    parts = []
    if workers:
        places = Counter(str(worker.get("place")) for worker in workers)
        slowest = max(workers, key=lambda worker: worker.get("seconds") or 0.0)
        who = ", ".join(f"{place} {times}×" for place, times in places.items())
        cost = f"{slowest.get('seconds') or 0.0:.1f} s, {slowest.get('replay_seconds') or 0.0:.1f} s of it replay"
        parts.append(f"{some(len(workers), 'worker')} replaced ({who}; the slowest took {cost})")
    if failures.get("environments"):
        parts.append(f"{count(failures['environments'])} of environments")
    if failures.get("quarantined"):
        parts.append(f"{some(failures['quarantined'], 'environment')} quarantined")
    return ", ".join(parts)


def _observers(summary: Mapping[str, Any]) -> str:
    """Those that failed, were too slow for all that they should have seen, or held the run up."""
    losses = _part(summary, "losses")
    troubled = []
    for name, record in _part(summary, "observers").items():
        parts = [f"{count(record[key])} {key}" for key in ("dropped", "errors") if record.get(key)]
        parts += [f"{count(record['cut_off'])} cut off at the end"] if record.get("cut_off") else []
        parts += ["detached"] if record.get("detached") else []
        if (share := record.get("blocked_share", 0.0)) > MUCH_WAITING:
            parts.append(f"held the run up for {record['blocked_seconds']:.1f} s, {share * 100:.0f} % of the time")
        if parts and name not in losses:
            error = record.get("first_error")
            troubled.append(f"{name} ({', '.join(parts)}{f': {error}' if error else ''})")
    return "; ".join(troubled)


def _places(run: str | Path | None) -> dict[str, str]:
    if run is None:
        return {}
    curve = Path(run) / "curve.png"
    return {
        "run": str(run),
        "curve": str(curve) if curve.exists() else "",
        "look": f"rollmill show {run}",
        "": f"tensorboard --logdir {run}" if (Path(run) / "tensorboard").exists() else "",
    }


def _part(summary: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = summary.get(key)
    return part if isinstance(part, Mapping) else {}
