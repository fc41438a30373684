"""What names a config on a command line, the same for every verb that takes one: CONFIG, KEY=VALUE and `--with`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Win over the file, e.g. seed=3 train.steps=100000.", show_default=False),
]

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
    return [*(f"@{fragment}" for fragment in fragments or ()), *(overrides or ())]
