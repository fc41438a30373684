"""`rollmill clean`: what dead runs left over, which should be nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmill.errors import Refused


def clean(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Run folders, or folders of them; runs/ unless given.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is listed.")] = False,
) -> None:
    """List the processes and half-written files of dead runs; nothing of a living run is touched."""
    from rollmill.report.leftovers import Draft, Orphan, find_drafts, find_orphans, find_runs

    for path in paths or []:
        if not path.is_dir():
            raise Refused(f"clean: {path}: no such folder: name a run or a folder of runs")
    runs = [run for path in paths or [Path("runs")] for run in find_runs(path)]
    living = frozenset(run.facts["pid"] for run in runs if isinstance(run.facts.get("pid"), int) and not run.has_ended)
    leftovers: list[Orphan | Draft] = [*find_orphans(living), *(draft for run in runs for draft in find_drafts(run))]
    if not leftovers:
        typer.echo("nothing was left over")
        return
    failures = 0
    for leftover in leftovers:
        try:
            if remove:
                leftover.remove()
            typer.echo(f"removed  {leftover}" if remove else str(leftover))
        except OSError as error:
            failures += 1
            typer.echo(f"kept     {leftover}: {error.strerror}")
    if not remove:
        typer.echo(f"{len(leftovers)} left over; --remove removes them")
    if failures:
        raise typer.Exit(1)
