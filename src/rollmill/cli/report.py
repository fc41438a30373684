"""`rollmill report`: runs side by side, as one page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders that `train --seeds` made.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Its heading.", show_default=False)] = None,
) -> None:
    """Write one self-contained HTML page about runs: curves over seeds, results, settings that differ, videos."""
    from rollmill.report.page import write_report

    groups = write_report(runs, out, title)
    counts = ", ".join(f"{group.label} ({len(group.runs)})" for group in groups)
    typer.echo(f"{out}  {out.stat().st_size / 1000:,.0f} kB: {counts}")
