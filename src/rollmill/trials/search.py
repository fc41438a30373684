"""Which setup is fastest: many for a short time, starting from the best so far; the best few longer, in alternation."""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any

from rollmill.console.display import Display
from rollmill.console.view import View
from rollmill.observe.phrases import clock, count, cut
from rollmill.trials.candidates import Candidate
from rollmill.trials.setups import Setup, anchors

FINALISTS = 3  # next to the config as it is; as many are kept running, so that the finals cost no start
SCREENING = 0.6  # share of the time in which candidates are tried once
PASSES = 9  # at most, of the finals
LEAST_GAIN = 1.03  # below that it is noise, and the config stays as it is
REDRAW_SECONDS = 0.5  # between two redraws while no answer arrives
ANSWER_SECONDS = 120.0  # seconds for a first answer
WIDEST_REASON = 100  # characters of why a setup failed
ROUND_SECONDS = 10  # of times that are proposed


@dataclass
class Trial:
    """The measurements of one setup."""

    setup: Setup
    rates: list[float] = field(default_factory=list)  # steps/s when it was first tried
    finals: list[float] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)  # of wall time, at the last measurement
    failed: str = ""

    @property
    def rate(self) -> float | None:
        """Steps per second: the median of the finals, or of the first try without finals."""
        measured = self.finals or self.rates
        return None if self.failed or not measured else median(measured)

    @property
    def outcome(self) -> str:
        """The rate or the failure, in words."""
        if self.failed:
            return f"failed: {cut(' '.join(self.failed.split()), WIDEST_REASON)}"
        return f"{count(self.rate)} steps/s"

    def ratio(self, base: Trial) -> float | None:
        """How many times as fast as `base`: of the finals pass by pass, because a machine's speed varies."""
        if self.rate is None or base.rate is None:
            return None
        if self.is_final(base):
            return median(ours / theirs for ours, theirs in zip(self.finals, base.finals, strict=False))
        return self.rates[0] / base.rates[0]

    def is_final(self, base: Trial) -> bool:
        """Whether the ratio is that of the finals; that of first tries has another base and a single measurement."""
        return bool(self.finals and base.finals)


class Search:
    """Measures the setups one after the other, within the time."""

    def __init__(
        self,
        start: Callable[[Setup], Candidate],
        base: Setup,
        setups: Sequence[Setup],
        cores: int,
        seconds: float,
        display: Display,
    ) -> None:
        self._start, self._base, self._display = start, base, display
        self.candidates = len(setups)  # next to the config as it is
        self._untried = list(setups)
        self._anchors = anchors(self._untried, cores)
        self._seconds = seconds
        self._slice = _trial_seconds(seconds)
        self._starts: list[float] = []  # seconds that each first try took beyond its slice
        self._begun = monotonic()
        self._running: dict[Setup, Candidate] = {}
        self.trials: dict[Setup, Trial] = {}

    @property
    def untried(self) -> int:
        """Setups for which there was no time."""
        return len(self._untried)

    @property
    def base(self) -> Trial:
        """The config as it is."""
        return self.trials[self._base]

    @property
    def seconds_for_all(self) -> int:
        """About how long to measure so that every setup is tried."""
        return seconds_for(1 + self.candidates, median(self._starts))

    def run(self) -> None:
        """Try the config as it is and the candidates, then the finalists."""
        try:
            self._begun = monotonic()
            self._try(self._base)
            while self._untried and (self._elapsed < SCREENING * self._seconds or len(self.trials) < 2):
                self._try(self._next())
            self._play_finals()
        finally:
            for candidate in self._running.values():
                candidate.close()

    def ranking(self) -> list[Trial]:
        """Best first, finalists before the rest; those that failed at the end."""
        return sorted(self.trials.values(), key=self._merit, reverse=True)

    def winner(self) -> Trial | None:
        """The fastest, or the config as it is if nothing is faster beyond the noise; None if all have failed."""
        best, base = self.ranking()[0], self.base
        if best.rate is None:
            return None
        ratio = best.ratio(base)
        return base if ratio is not None and ratio < LEAST_GAIN else best

    def _merit(self, trial: Trial) -> tuple[bool, float]:
        return bool(trial.finals) and not trial.failed, trial.ratio(self.base) or trial.rate or 0.0

    @property
    def _elapsed(self) -> float:
        return monotonic() - self._begun

    def _next(self) -> Setup:
        """The anchors first; then the setup nearest to the best so far."""
        if self._anchors:
            choice = self._anchors.pop(0)
        else:
            best = self.ranking()[0].setup
            choice = min(self._untried, key=best.distance)
        self._untried.remove(choice)
        return choice

    def _try(self, setup: Setup) -> None:
        begun = monotonic()
        trial = self.trials[setup] = Trial(setup)
        self._running[setup] = self._start(setup)
        self._measure(trial, trial.rates, self._slice, "trying")
        self._starts.append(max(monotonic() - begun - self._slice, 0.0))
        self._display.say(f"{clock(self._elapsed)}  {setup}: {trial.outcome}")
        kept = {self._base, *(trial.setup for trial in self.ranking()[:FINALISTS] if not trial.failed)}
        for loser in [setup for setup in self._running if setup not in kept]:
            self._running.pop(loser).close()

    def _play_finals(self) -> None:
        """All finalists in turn, so that a machine that becomes slower or faster does so for all of them."""
        finalists = [trial for trial in self.trials.values() if trial.setup in self._running and not trial.failed]
        if len(finalists) < 2:
            return
        time_for_five_passes = (self._seconds - self._elapsed) / (5 * len(finalists))
        seconds = min(max(time_for_five_passes, self._slice / 2), self._slice)
        for number in range(PASSES):
            if number and self._seconds - self._elapsed < seconds * len(finalists):
                return
            for trial in finalists if number % 2 == 0 else reversed(finalists):
                if not trial.failed:
                    self._measure(trial, trial.finals, seconds, "finals:")

    def _measure(self, trial: Trial, rates: list[float], seconds: float, what: str) -> None:
        candidate = self._running[trial.setup]
        candidate.ask(seconds)
        answer = self._wait(candidate, f"{what} {trial.setup}")
        if "failed" in answer:
            trial.failed = str(answer["failed"])
            self._running.pop(trial.setup).close()
        else:
            rates.append(answer["steps"] / answer["seconds"])
            trial.shares = answer["shares"]

    def _wait(self, candidate: Candidate, text: str) -> dict[str, Any]:
        until = monotonic() + max(ANSWER_SECONDS, self._seconds)
        while monotonic() < until:
            left = max(0.0, self._seconds - self._elapsed)
            self._display.show(View([(text, 1.0 - left / self._seconds, f"ETA {clock(left)}")], lines=[]))
            if select.select([candidate], [], [], REDRAW_SECONDS)[0]:
                return candidate.answer()
        return {"failed": f"no update within {max(ANSWER_SECONDS, self._seconds):.0f} s"}


def seconds_for(setups: int, start: float) -> int:
    """The least time, in round numbers, to try so many setups, each of which takes `start` seconds to begin."""
    enough = (
        seconds
        for seconds in itertools.count(ROUND_SECONDS, ROUND_SECONDS)
        if SCREENING * seconds >= setups * (start + _trial_seconds(seconds))
    )
    return next(enough)


def _trial_seconds(seconds: float) -> float:
    """How long each setup is tried in a search of so many seconds."""
    return min(max(seconds / 30, 0.3), 5.0)
