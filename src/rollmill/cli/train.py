"""`rollmill train`: from a config file to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="A YAML file; `rollmill list configs` shows some.", show_default=False),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Win over the file, e.g. seed=3 train.steps=100000."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="DIR", help="The run folder to make.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")] = False,
    dev: Annotated[
        bool, typer.Option("--dev", help="A tiny iteration through everything in seconds, serial, for debugging.")
    ] = False,
) -> None:
    """Train an agent from a config file."""
    from rollmill.experiment import train_run

    outcome = train_run(config, overrides or [], run, overwrite, dev)
    if outcome.status == "interrupted":
        raise typer.Exit(128 + outcome.signal)
