"""Which seeds to train, how many of them at a time, and on which cores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollmill.doctor.preflight import draw_blueprint, draw_graph
from rollmill.errors import Refused
from rollmill.launch.pulse import watchdog
from rollmill.resuming import fitting_weights
from rollmill.settings import ExperimentConfig

EXAMPLE = "write whole numbers with commas between them, such as --seeds 1,2,3"


def read_seeds(text: str) -> list[int]:
    """`1,2,3`, or `1-5` for all of them, as numbers in the order given."""
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not (first.isdecimal() and first.isascii()) or (dash and not (last.isdecimal() and last.isascii())):
            what = f"'{word.strip()}' is no seed" if word.strip() else "a seed is missing"
            raise Refused(f"--seeds {text!r}: {what}: {EXAMPLE}")
        begin, end = int(first), int(last or first)
        if end < begin or end - begin >= 1000:
            raise Refused(f"--seeds {text!r}: '{word.strip()}' is no range of up to 1000 seeds: {EXAMPLE}")
        seeds += range(begin, end + 1)
    for place, seed in enumerate(seeds):
        if seed in seeds[:place]:
            raise Refused(f"--seeds {text!r}: {seed} is given twice: keep one")
    return seeds


def refuse_seed_override(overrides: Sequence[str]) -> None:
    """Refuse a seed that is given in two places."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key.strip() == "seed":
            raise Refused(f"seed={value} can't stand beside --seeds: leave one of them out")


def cores_needed(config: ExperimentConfig, start_from: Path | None = None) -> int:
    """How many cores one run keeps busy: the threads of all its processes; weights that don't fit it are refused."""
    with watchdog(config.runtime.env_seconds):
        blueprint = draw_blueprint(config)
        graph = draw_graph(blueprint)
    if start_from is not None:  # each seed would refuse it by itself, in a folder that is made by then
        fitting_weights(start_from, blueprint)
    threads: dict[str, int] = {}
    for node in graph.nodes:
        threads[node.place] = max(threads.get(node.place, 1), config.runtime.threads_of(node.role))
    return sum(threads.values())


def deal_cores(cores: Sequence[int], need: int, runs: int, wanted: int | None) -> list[list[int]]:
    """The cores of every run that continues at the same time; empty lists where they have to share.

    Without a share of its own each run would tie its first worker to the same core.
    """
    carried = max(1, len(cores) // need)
    places = min(runs, wanted or carried)
    if places == 1 or places * need > len(cores):
        return [[] for _ in range(places)]
    return [list(cores[place::places]) for place in range(places)]
