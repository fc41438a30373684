"""`rollmill train`: from a config file to a run folder, or to one for each of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.config_arguments import Fragments, Overrides, laid_over
from rollmill.errors import Refused, exit_code_of


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG|RUN",
            help="A YAML file; `rollmill list configs` shows some. With --resume: a run folder.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    fragments: Fragments = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="DIR", help="The run folder to make.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run folder from its newest good checkpoint.")
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Begin a new run with the weights of a run or checkpoint."),
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="A tiny iteration through everything in seconds, serial, for debugging.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", metavar="1,2,3", help="Train once with each seed, in DIR/seed-1, DIR/seed-2 and so on."
        ),
    ] = None,
    side_by_side: Annotated[
        int | None,
        typer.Option(
            "--side-by-side",
            metavar="N",
            help="Seeds trained at the same time; as many as the cores carry unless given.",
        ),
    ] = None,
) -> None:
    """Train an agent from a config file, or continue with a run."""
    if resume and fragments:
        raise Refused(f"--with {fragments[0]}: --resume continues with the run's own config; give overrides instead")
    changes = laid_over(fragments, overrides)
    is_of_seeds = (config / "seeds.json").is_file()
    if is_of_seeds and not resume:
        raise Refused(f"{config} is a folder of several seeds; add --resume to continue it, or give a YAML file")
    if seeds is not None or is_of_seeds:
        if resume:
            new = {"--seeds": seeds, "--run": run, "--overwrite": overwrite, "--dev": dev, "--from": start_from}
            _resume_seeds(config, changes, side_by_side, [name for name, value in new.items() if value])
        else:
            _train_seeds(config, seeds or "", changes, run, overwrite, dev, start_from, side_by_side)
        return
    if side_by_side is not None:
        raise Refused(f"--side-by-side {side_by_side} is about several seeds: add --seeds, such as --seeds 1,2,3")
    from rollmill.experiment import train_run

    outcome = train_run(config, changes, run, overwrite, dev, resume, start_from)
    if outcome.status == "interrupted":
        raise typer.Exit(exit_code_of(outcome.signal))


def _train_seeds(
    config: Path,
    seeds: str,
    overrides: Sequence[str],
    run: Path | None,
    overwrite: bool,
    dev: bool,
    start_from: Path | None,
    side_by_side: int | None,
) -> None:
    from rollmill.trials.runner import train_seeds

    _refuse_number(side_by_side)
    outcome = train_seeds(config, seeds, overrides, run, overwrite, dev, start_from, side_by_side)
    _close(outcome.path, outcome.exit_code)


def _resume_seeds(path: Path, overrides: Sequence[str], side_by_side: int | None, unwanted: Sequence[str]) -> None:
    from rollmill.trials.runner import resume_seeds

    _refuse_number(side_by_side)
    if unwanted:
        raise Refused(f"--resume continues in place, with the seeds of the folder; leave out {', '.join(unwanted)}")
    outcome = resume_seeds(path, overrides, side_by_side)
    _close(outcome.path, outcome.exit_code)


def _refuse_number(side_by_side: int | None) -> None:
    if side_by_side is not None and side_by_side < 1:
        raise Refused(f"--side-by-side {side_by_side}: at least one run is trained at a time: give 1 or more")


def _close(path: Path, exit_code: int) -> None:
    """Show what all seeds have reached, and end as the worst of them."""
    from rollmill.report.seeds_table import seeds_lines

    try:
        typer.echo("\n".join(["", *seeds_lines(path)]))
    except Refused as refusal:  # no seed got as far as making its folder
        typer.echo(f"  {refusal}")
    if exit_code:
        raise typer.Exit(exit_code)
