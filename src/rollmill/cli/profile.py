"""`rollmill profile`: where the time of a training goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.config_arguments import ConfigFile, Fragments, Overrides, laid_over
from rollmill.errors import exit_code_of


def profile(
    config: ConfigFile,
    overrides: Overrides = None,
    fragments: Fragments = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to train.")] = 20.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to; profiles/<config>-<time> by default.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print profile.json instead of a table.")] = False,
) -> None:
    """Train for some seconds and show where the time goes, as a table and a file for speedscope.

    Interrupted, it shows what was seen so far.
    """
    from rollmill.profiling.profile import SPEEDSCOPE
    from rollmill.profiling.profile import profile as observe

    profiled = observe(config, laid_over(fragments, overrides), seconds, out)
    if as_json:
        typer.echo(json.dumps(profiled.record, indent=2))
    else:
        typer.echo("\n".join(profiled.lines))
        typer.echo(f"\nflame graph: {profiled.folder / SPEEDSCOPE}, open it at www.speedscope.app")
    if profiled.signal:
        raise typer.Exit(exit_code_of(profiled.signal))
