"""The verbs, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from rollmill.cli.check import check
from rollmill.cli.clean import clean
from rollmill.cli.evaluate import evaluate
from rollmill.cli.listing import list_known
from rollmill.cli.profile import profile
from rollmill.cli.report import report
from rollmill.cli.retrace import retrace
from rollmill.cli.show import show
from rollmill.cli.train import train
from rollmill.cli.tune import tune
from rollmill.cli.watch import watch

app = typer.Typer(
    help="Train agents with deep reinforcement learning, bit-identically on every runtime.",
    epilog="Exit codes: 0 done, 1 fault, 2 refused input, 3 stopped by a detector, 130 / 143 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # errors are ours to show: one line, see exits.py
)


@app.callback()
def rollmill(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; also accepted after the verb.")
    ] = False,
) -> None:
    """Declare the options that every verb takes; `main` has read them already, this is for `--help`."""


for verb in (train, show, evaluate, watch, report, check, tune, profile, retrace, list_known, clean):
    app.command("list" if verb is list_known else None)(verb)
