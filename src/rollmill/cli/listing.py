"""`rollmill list`: what there is to train, on what, and how it is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmill.console.text_table import text_table
from rollmill.errors import Refused, nearest


def list_known(
    what: Annotated[str, typer.Argument(metavar="algorithms|envs|configs", show_default=False)],
) -> None:
    """List the algorithms, the environments or the config files below ./configs."""
    if what == "algorithms":
        from rollmill.experiment import known_algorithms

        listed = known_algorithms()
    elif what == "envs":
        from rollmill.envs.make import known_environments

        listed = dict.fromkeys(known_environments(), "")
    elif what == "configs":
        listed = _configs()
    else:
        raise Refused(f"list: '{what}' is unknown: {nearest(what, ['algorithms', 'envs', 'configs'])}")
    for line in text_table(list(listed.items()), left=(0, 1)):
        typer.echo(line)


def _configs() -> dict[str, str]:
    from rollmill.config.load import config_files

    folder = Path("configs")
    if not folder.is_dir():
        raise Refused(f"list configs: no folder '{folder}' in {Path.cwd()}: run this where the configs are")
    return {str(file): _headline(file) for file in config_files(folder)}


def _headline(file: Path) -> str:
    """The comment that a config begins with, which says what it is for."""
    first, _, _ = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    return first.removeprefix("#").strip() if first.startswith("#") else ""
