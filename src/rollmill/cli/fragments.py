"""The option `--with`, which several verbs have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Fragments = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help="A file with some keys of a config, laid over it before KEY=VALUE; may be given again.",
        show_default=False,
    ),
]


def laid_over(fragments: Sequence[Path] | None, overrides: Sequence[str] | None = None) -> list[str]:
    """The overrides of a command line, with the files that go before them."""
    if not fragments:
        return list(overrides or [])
    from rollmill.config_file import with_fragments

    return with_fragments(fragments, overrides or [])
