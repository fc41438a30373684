"""`rollmill tune`: measure for a minute which setting trains fastest on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.config_arguments import ConfigFile, Fragments, Overrides, laid_over


def tune(
    config: ConfigFile,
    overrides: Overrides = None,
    fragments: Fragments = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to measure, about.")] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write; default: <config>.tuned.yaml.", show_default=False),
    ] = None,
    envs: Annotated[
        bool, typer.Option("--envs", help="Also try other numbers of environments, which changes what is learned.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all measurements as JSON instead of a table.")] = False,
) -> None:
    """Measure which workers, groups, threads and roles train fastest, and write them as a file for `train --with`.

    Interrupted, it writes nothing.
    """
    from rollmill.trials.tune import tune as measure

    record = measure(config, laid_over(fragments, overrides), seconds, out, envs, not as_json)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
