"""`rollmill show`: what a config resolves to, or how a run went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollmill.config.load import Loaded


def show(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="A run folder or a YAML file.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show a run's summary, or a config with the origin of every value and its component graph."""
    is_config = path.is_file() or path.suffix in (".yaml", ".yml")
    text = (_config if is_config else _run)(path, as_json)
    typer.echo(text)


def _config(path: Path, as_json: bool) -> str:
    from rollmill.experiment import graph_text, load_config

    loaded = load_config(path, [])
    if as_json:
        config = loaded.config.model_dump(mode="json", by_alias=True)
        return json.dumps({"config": config, "origins": loaded.origins}, indent=2)
    return "\n".join([*_lines(loaded), "", graph_text(loaded)])


def _run(path: Path, as_json: bool) -> str:
    from rollmill.console.closing import closing_lines
    from rollmill.report.runs import read_summary

    summary = read_summary(path)
    if as_json:
        return json.dumps(summary, indent=2)
    lines = closing_lines({"title": str(path), "run": str(path), **summary})
    return "\n".join([*lines, "", f"  {'everything':<11}rollmill show {path} --json"])


def _lines(loaded: Loaded[Any]) -> list[str]:
    """YAML lines, the origins as comments in a column of their own."""
    from rollmill.config.load import flattened

    lines: list[tuple[str, str]] = []
    above: list[str] = []
    for path, given in flattened(loaded.config).items():
        *sections, key = path.split(".")
        for depth, section in enumerate(sections):
            if sections[: depth + 1] != above[: depth + 1]:
                lines.append(("  " * depth + f"{section}:", ""))
        value = json.dumps(given, ensure_ascii=False)  # JSON is YAML, and leaves no doubt what is text
        lines.append(("  " * len(sections) + f"{key}: {value}", f"  # {loaded.origins[path]}"))
        above = sections
    width = max(len(text) for text, _ in lines)
    return [f"{text:{width}}{origin}" if origin else text for text, origin in lines]
