"""`rollmill train`: from a config file to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmill.errors import exit_code_of


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG|RUN",
            help="A YAML file; `rollmill list configs` shows some. With --resume: a run folder.",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Win over the file, e.g. seed=3 train.steps=100000."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="DIR", help="The run folder to make.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run folder where its newest good checkpoint stands.")
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Begin a new run with the weights of a run or checkpoint."),
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="A tiny iteration through everything in seconds, serial, for debugging.")
    ] = False,
) -> None:
    """Train an agent from a config file, or go on with a run."""
    from rollmill.experiment import train_run

    outcome = train_run(config, overrides or [], run, overwrite, dev, resume, start_from)
    if outcome.status == "interrupted":
        raise typer.Exit(exit_code_of(outcome.signal))
