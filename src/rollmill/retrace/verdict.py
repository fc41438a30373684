"""`rollmill retrace`: a run is repeated and compared with its flight log and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.console.display import Display
from rollmill.console.view import Work
from rollmill.errors import RollmillError
from rollmill.launch.proc import is_gone
from rollmill.numerics import REMEDY, difference, facts
from rollmill.observe.phrases import clock, count
from rollmill.persist.parts import package_version
from rollmill.persist.run_folder import MARK
from rollmill.persist.writing import read_record
from rollmill.retrace.comparison import Diverged
from rollmill.retrace.debugger import Debugger, LeftDebugger
from rollmill.retrace.retrace import Retrace, Step


@dataclass
class Verdict:
    """The result of a retrace."""

    run: Path
    updates_in_log: int
    step: Step
    warnings: list[str] = field(default_factory=list)
    sha256: str | None = None  # of the parameters at the end
    is_in_summary: bool = False  # whether the run ended with it
    ends: str = ""  # why the log ends before the end of the run, if it does
    cause: str = ""  # why it likely diverged
    failure: str = ""  # the error that ended the run in its last update, then and now
    seconds: float = 0.0
    error: RollmillError | None = None  # the run diverged, or its log is damaged

    @property
    def record(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        status = "equal" if self.error is None else "diverged" if isinstance(self.error, Diverged) else "damaged"
        return {
            "run": str(self.run),
            "status": status,
            "updates": self.step.update,
            "updates_in_log": self.updates_in_log,
            "env_steps": self.step.env_steps,
            "hashes": self.step.hashes,
            "parameters_sha256": self.sha256,
            "is_in_summary": self.is_in_summary,
            "ends": self.ends,
            "failure": self.failure,
            "cause": self.cause,
            "divergence": self.error.facts if isinstance(self.error, Diverged) else None,
            "seconds": round(self.seconds, 3),
            "warnings": self.warnings,
        }

    @property
    def lines(self) -> list[str]:
        """The same as lines for the terminal."""
        made, steps = count(self.step.update), count(self.step.env_steps)
        equal = f"every unroll and loss up to update {made}, {_hashes(self.step)} of all parameters"
        parameters = f"sha256 {self.sha256}{', as in summary.json' if self.is_in_summary else ''}"
        facts = {
            "retraced": f"{made} of {count(self.updates_in_log)} updates, {steps} env steps, in {clock(self.seconds)}",
            "equal": equal if self.step.update else "",
            "parameters": parameters if self.sha256 else "",
            "log ends": self.ends,
            "likely why": self.cause,
            "failed": self.failure,
        }
        return [f"  {name:<12}{text}" for name, text in facts.items() if text]


def retrace_run(run: Path, until: int | None, is_breaking: bool, display: Display) -> Verdict:
    """Repeat the run and compare; a divergence or damage is in the verdict's `error`."""
    begun = perf_counter()
    retrace = Retrace(run, until)
    script, summary = retrace.script, read_record(run / "summary.json")
    if is_breaking:
        failed_at = None if script.attempt is None else script.attempt.update
        retrace.until = until or script.last
        retrace.hooks, retrace.is_watched = Debugger(retrace, until or failed_at, display), False
    warnings = _warnings(run, summary)
    if foreign := _other_numerics(retrace):
        warnings.append(f"made where numbers round differently: it will likely diverge; {REMEDY}")
    verdict = Verdict(run, len(script.updates), Step(), warnings)
    display.say(*verdict.warnings)
    work = Work("retracing", "updates", retrace.until)
    display.show(work.after())
    try:
        for step in retrace.steps():
            verdict.step = step
            if display.is_due:
                display.show(work.after(step.update, f"{_hashes(step)} equal"))
        verdict.sha256 = retrace.sha256
        if not _is_running(run, summary):
            verdict.is_in_summary = _compare(verdict.step.update, retrace.sha256, summary)
    except LeftDebugger:
        pass
    except (KeyboardInterrupt, SystemExit):
        reached = f"equal up to update {count(verdict.step.update)}" if verdict.step.update else "no update was made"
        display.say(f"interrupted; {reached}")
        raise
    except Diverged as divergence:
        verdict.error = divergence
        if foreign and foreign[0] < divergence.update:
            verdict.cause = f"it was made where numbers round differently; {REMEDY}"
    except Exception as failure:
        if script.attempt is None or retrace.made + 1 != script.attempt.update:
            raise
        verdict.failure = f"update {script.attempt.update} ends as it ended the run: {failure}"
    finally:
        display.finish()
    verdict.seconds = perf_counter() - begun
    if until is None:
        verdict.ends = _end_of_log(retrace, summary)
        if verdict.error is None and script.damage is not None:
            verdict.error = RollmillError(
                f"{script.damage}; the {count(verdict.step.update)} updates before it are equal"
            )
    display.say(*verdict.lines)
    return verdict


def _other_numerics(retrace: Retrace) -> list[int]:
    """The updates up to `until` after which a process continued that rounds differently from this one."""
    begun = retrace.script.begun.items()
    now = facts(retrace.config.runtime.numerics)
    return sorted(n for n, then in begun if n < retrace.until and difference(then.get("numerics", now), now))


def _hashes(step: Step) -> str:
    return f"{count(step.hashes)} {'hash' if step.hashes == 1 else 'hashes'}"


def _compare(update: int, sha256: str, summary: Mapping[str, Any]) -> bool:
    """Whether the result is the run's; it must be if the log reaches the end of the run."""
    updates, expected = summary.get("updates"), summary.get("parameters_sha256")
    if updates is not None and update > updates and summary.get("status") != "running":
        raise Diverged(update, "updates", f"the run ended after {updates}, by its summary.json")
    if update != updates or expected is None:
        return False
    if expected != sha256:
        raise Diverged(update, "parameters_sha256", f"{sha256}, in summary.json {expected}")
    return True


def _end_of_log(retrace: Retrace, summary: Mapping[str, Any]) -> str:
    """Why the log ends before the end of the run; empty if it doesn't."""
    last, attempt = len(retrace.script.updates), retrace.script.attempt
    if retrace.script.damage is not None:
        return f"after update {last}: {retrace.script.damage}"
    if attempt is not None and retrace.until < attempt.update:
        return f"in update {attempt.update}, which ended the run; look into it with --break"
    if (updates := summary.get("updates")) is not None and updates > last and summary.get("status") != "running":
        lost = summary.get("flight_log") or {}
        return f"after update {last} of {updates}{': ' + lost['lost'] if 'lost' in lost else ''}"
    return ""


def _warnings(run: Path, summary: Mapping[str, Any]) -> list[str]:
    found = []
    then = read_record(run / MARK).get("versions") or {}
    changed = [
        f"{name} {old} (now {package_version(name)})" for name, old in then.items() if old != package_version(name)
    ]
    if changed:
        found.append(f"made with {', '.join(changed)}: bits may differ for that alone")
    if _is_running(run, summary):
        found.append("the run is still running: it is retraced as far as its log goes now")
    return found


def _is_running(run: Path, summary: Mapping[str, Any]) -> bool:
    return summary.get("status", "running") == "running" and not is_gone(read_record(run / MARK), run / MARK)
