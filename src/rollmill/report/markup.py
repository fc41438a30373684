"""HTML from Python values: what isn't markup is escaped, so that no name or message can become code."""

from __future__ import annotations

from html import escape

_VOID = {"meta", "img", "input", "br"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: str | None, **attributes: str | int | bool | None) -> Markup:
    """An element; None and False leave an attribute out, `class_` is class and `data_x` is data-x."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escape(str(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*content)}</{name}>")


def join(*content: str | None) -> Markup:
    """Pieces one after the other, escaped where they are plain text."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(piece) for piece in content if piece))
