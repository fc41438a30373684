"""`rollmill train`: from a config file to a run folder, or to one for each of several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.config_arguments import Fragments, Overrides, laid_over
from rollmill.errors import Refused, exit_code_of

if TYPE_CHECKING:
    from rollmill.trials.seeds import SeedsResult


ConfigOrRun = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|RUN",
        help="A YAML file; `rollmill list configs` shows some. With --resume: a run folder.",
        show_default=False,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run folder from its newest good checkpoint.")]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="CHECKPOINT", help="Begin a new run with the weights of a run or checkpoint."),
]
Dev = Annotated[
    bool, typer.Option("--dev", help="A tiny iteration through everything in seconds, serial, for debugging.")
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="1,2,3", help="Train once with each seed, in DIR/seed-1, DIR/seed-2 and so on."),
]
SideBySide = Annotated[
    int | None,
    typer.Option(
        "--side-by-side", metavar="N", help="Seeds trained at the same time; as many as the cores carry unless given."
    ),
]


def train(
    config: ConfigOrRun,
    overrides: Overrides = None,
    fragments: Fragments = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="DIR", help="The run folder to make.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")] = False,
    resume: Resume = False,
    start_from: From = None,
    dev: Dev = False,
    seeds: Seeds = None,
    side_by_side: SideBySide = None,
) -> None:
    """Train an agent from a config file, or continue with a run."""
    if resume and fragments:
        raise Refused(f"--with {fragments[0]}: --resume continues with the run's own config; give overrides instead")
    changes = laid_over(fragments, overrides)
    is_of_seeds = (config / "seeds.json").is_file()
    if is_of_seeds and not resume:
        raise Refused(f"{config} is a folder of several seeds; add --resume to continue it, or give a YAML file")
    if seeds is not None or is_of_seeds:
        new = {"--seeds": seeds, "--run": run, "--overwrite": overwrite, "--dev": dev, "--from": start_from}
        if resume and (unwanted := [name for name, value in new.items() if value]):
            raise Refused(f"--resume continues in place, with the seeds of the folder; leave out {', '.join(unwanted)}")
        if side_by_side is not None and side_by_side < 1:
            raise Refused(f"--side-by-side {side_by_side}: at least one run is trained at a time: give 1 or more")
        from rollmill.trials.seeds import resume_seeds, train_seeds

        if resume:
            _close(resume_seeds(config, changes, side_by_side))
        else:
            _close(train_seeds(config, seeds or "", changes, run, overwrite, dev, start_from, side_by_side))
        return
    if side_by_side is not None:
        raise Refused(f"--side-by-side {side_by_side} is about several seeds: add --seeds, such as --seeds 1,2,3")
    from rollmill.experiment import train_run

    outcome = train_run(config, changes, run, overwrite, dev, resume, start_from)
    if outcome.status == "interrupted":
        raise typer.Exit(exit_code_of(outcome.signal))


def _close(outcome: SeedsResult) -> None:
    """Show what all seeds have reached, and end with the highest of their exit codes."""
    from rollmill.report.seeds_table import seeds_lines

    try:
        typer.echo("\n".join(["", *seeds_lines(outcome.path)]))
    except Refused as refusal:  # no seed got as far as making its folder
        typer.echo(f"  {refusal}")
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
