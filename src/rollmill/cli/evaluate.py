"""`rollmill evaluate`: play a run, a checkpoint or a baseline, and keep what was played."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollmill.errors import exit_code_of

Run = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN|CHECKPOINT]", help="A run folder or one of its checkpoints.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes of the environment, e.g. env.time_limit=200."),
]
Steps = Annotated[
    int | None, typer.Option(help="Instead: whole episodes until there are so many steps.", show_default=False)
]
Greedy = Annotated[
    bool | None,
    typer.Option("--greedy/--sample", help="The policy's best actions (default), or drawn.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to; default: <run>/evaluations/<time>.")]
Policy = Annotated[
    str | None,
    typer.Option(metavar="random|constant:K|scripted:NAME", help="Another player than a trained policy."),
]
Env = Annotated[str | None, typer.Option(metavar="ID|CONFIG", help="The environment, where there is no run.")]
Baselines = Annotated[
    bool, typer.Option(help="Also play at random, with constant actions and the environment's scripts.")
]
Examine = Annotated[bool, typer.Option(help="Also run the environment's own protocol, where it has one (oscillator).")]


def evaluate(
    run: Run = None,
    overrides: Overrides = None,
    episodes: Annotated[int | None, typer.Option(help="How many; default: 20.", show_default=False)] = None,
    steps: Steps = None,
    greedy: Greedy = None,
    workers: Annotated[int, typer.Option(help="Processes that play; the result doesn't depend on it.")] = 1,
    out: Out = None,
    video: Annotated[int, typer.Option(metavar="N", help="Film the first N episodes.")] = 0,
    grid: Annotated[bool, typer.Option("--grid", help="Also put the videos side by side in one.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Keep every step of every episode.")] = False,
    info: Annotated[bool, typer.Option("--info", help="With the environment's info.")] = False,
    policy: Policy = None,
    env: Env = None,
    baselines: Baselines = True,
    examine: Examine = True,
    seed: Annotated[int, typer.Option(help="Of the episodes: equal seeds, equal episodes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print evaluation.json instead of a table.")] = False,
) -> None:
    """Play episodes of a trained policy and of baselines, with statistics, dumps and videos."""
    from rollmill.console.display import Display
    from rollmill.persist.writing import to_json
    from rollmill.play.evaluate import evaluate_request
    from rollmill.play.request import Request

    changes = list(overrides or [])
    if run is not None and env is not None and "=" in str(run):  # without a run the first word is an override
        run, changes = None, [str(run), *changes]
    request = Request(
        run=run,
        overrides=changes,
        episodes=episodes,
        steps=steps,
        greedy=greedy,
        workers=workers,
        out=out,
        video=video,
        grid=grid,
        dump=dump,
        info=info,
        policy=policy,
        env=env,
        baselines=baselines,
        examine=examine,
        seed=seed,
    )
    outcome = evaluate_request(request, Display(sys.stdout, "none" if as_json else "auto"))
    if as_json:
        typer.echo(to_json(outcome.record, indent=2))
    if outcome.status == "interrupted":
        raise typer.Exit(exit_code_of(outcome.signal))
