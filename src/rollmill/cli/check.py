"""`rollmill check`: every config below the given paths, validated and wired but not trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.config_arguments import Fragments, laid_over
from rollmill.errors import Absent, Refused


def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH|KEY=VALUE",
            help="Config files, or folders of them, and what wins over each, e.g. env.group_size=32.",
            show_default=False,
        ),
    ] = None,
    fragments: Fragments = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of config files, for editors, and check nothing.")
    ] = False,
) -> None:
    """Validate config files without training: one line for each.

    "absent" is a config that names what isn't on this machine, such as a Unity build; beyond that it isn't checked.
    """
    if schema:
        from rollmill.config.load import json_schema
        from rollmill.experiment import ExperimentConfig

        typer.echo(json.dumps(json_schema(ExperimentConfig), indent=2))
        return
    overrides = [argument for argument in arguments or [] if _is_override(argument)]
    paths = [Path(argument) for argument in arguments or [] if not _is_override(argument)]
    if not paths:
        raise Refused("check: no path given: name config files or a folder, such as configs/")
    changes = laid_over(fragments, overrides)
    outcomes = [_is_valid(file, changes) for path in paths for file in _files(path)]
    if not all(outcomes):
        raise typer.Exit(Refused.exit_code)


def _is_override(argument: str) -> bool:
    return "=" in argument and not Path(argument).exists()


def _files(path: Path) -> list[Path]:
    from rollmill.config.load import config_files

    if not path.is_dir():
        return [path]
    if files := config_files(path):
        return files
    raise Refused(f"{path}: no YAML file in this folder: name one that holds configs")


def _is_valid(file: Path, changes: list[str]) -> bool:
    from rollmill.experiment import check_config, load_config

    try:
        check_config(load_config(file, changes))
    except Absent as refusal:
        typer.echo(f"absent   {_naming(file, str(refusal))}")
        return True
    except Refused as refusal:
        typer.echo(f"refused  {_naming(file, str(refusal))}")
        return False
    typer.echo(f"ok       {file}")
    return True


def _naming(file: Path, message: str) -> str:
    """The message with the file in front; what is found while wiring knows only the key."""
    return message if message.startswith(str(file)) else f"{file}: {message}"
