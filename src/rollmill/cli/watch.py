"""`rollmill watch`: the newest policy of a run, playing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.errors import Refused

if TYPE_CHECKING:
    from rollmill.play.watch_screen import Screen


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run, also one that is training.", show_default=False)
    ],
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw on the terminal; the default on one.")] = False,
    http: Annotated[
        int | None,
        typer.Option(
            "--http", metavar="PORT", help="A web page on 127.0.0.1; 0: any free port. The default elsewhere."
        ),
    ] = None,
    frames: Annotated[
        Path | None, typer.Option("--frames", metavar="DIR", help="Write latest.png and latest.json there.")
    ] = None,
    every_frame: Annotated[
        bool, typer.Option("--every-frame", help="With --frames: keep every frame, in a folder per episode.")
    ] = False,
    episodes: Annotated[int | None, typer.Option("--episodes", help="End after so many; else with Ctrl-C.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw actions as in training, instead of the likeliest.")] = (
        False
    ),
    fps: Annotated[
        float | None,
        typer.Option("--fps", help="Steps per second; 0: as fast as it goes. The environment's own rate unless given."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="For other episodes.")] = 0,
) -> None:
    """Show the newest policy of a run playing; newer checkpoints are taken over between two episodes."""
    if sum((terminal, http is not None, frames is not None)) > 1:
        raise Refused("--terminal, --http and --frames exclude one another; give one")
    if every_frame and frames is None:
        raise Refused("--every-frame needs --frames DIR")
    if fps is not None and not 0 <= fps <= 1e6:
        raise Refused(f"--fps {fps:g} is out of range; give steps per second, or 0 for as fast as it goes")
    if episodes is not None and episodes < 1:
        raise Refused(f"--episodes {episodes} is out of range; give at least 1")
    if seed < 0:
        raise Refused(f"--seed {seed} is out of range; give a number from 0 on")
    if http is not None and not 0 <= http <= 65535:
        raise Refused(f"--http {http} is not a port; give one from 1 to 65535, or 0 for any free one")
    if terminal and not _is_terminal():
        raise Refused("--terminal: standard output is not a terminal that can draw; leave it out, or use --http 0")
    from rollmill.numerics import require
    from rollmill.play.trained_policy import open_subject

    require(open_subject(run).config.runtime.numerics)  # refused before anything is opened
    for variable in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # pygame draws without a display, and says nothing of it
        os.environ.setdefault(variable, "dummy")
    screen = _screen(terminal, http, frames, every_frame)
    try:
        from rollmill.play.watch_show import watch as show

        show(run, screen, episodes, not sample, fps, seed)
    finally:
        screen.close()


def _screen(terminal: bool, http: int | None, frames: Path | None, every_frame: bool) -> Screen:
    if frames is not None:
        from rollmill.play.watch_screen import FolderScreen

        return FolderScreen(frames, every_frame)
    if terminal or (http is None and _is_terminal()):
        from rollmill.play.watch_terminal import TerminalScreen

        return TerminalScreen(sys.stdout)
    from rollmill.play.watch_page import PageScreen

    page = PageScreen(http or 0)
    typer.echo(f"watch: {page.address}")
    sys.stdout.flush()
    return page


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
