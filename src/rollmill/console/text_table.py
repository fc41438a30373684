"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Container, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Container[int] = (0,), indent: str = "") -> list[str]:
    """Rows of cells as lines with aligned columns: the columns `left` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in enumerate(pairs)
        )
        for pairs in (zip(row, widths, strict=True) for row in rows)
    ]
    return [f"{indent}{line}".rstrip() for line in lines]
