"""`rollmill retrace`: run a training again from its flight log, to the same bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def retrace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    until: Annotated[
        int | None,
        typer.Option(metavar="UPDATE", help="The last update to make; default: all of the log.", show_default=False),
    ] = None,
    is_breaking: Annotated[
        bool,
        typer.Option(
            "--break",
            help="Open a debugger before the update of --until (without it: before the one that ended the run, if one "
            "did), and wherever the run diverges.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON instead of lines.")] = False,
) -> None:
    """Run a training again from its flight log, serially: to the same parameters, or to the first difference.

    Exit code 0: equal as far as the log goes; 1: it diverges or the log is damaged.
    """
    from rollmill.console.display import Display
    from rollmill.retrace.verdict import retrace_run

    verdict = retrace_run(run, until, is_breaking, Display(sys.stdout, "none" if as_json else "auto"))
    if as_json:
        typer.echo(json.dumps(verdict.record, indent=2))
    if verdict.error is not None:
        raise verdict.error
