"""Nested arrays: a leaf, or a dict of nested arrays. Works for numpy arrays, torch tensors and specs alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# A leaf or dict[str, Nested]; Any, because leaves are numpy arrays, tensors, specs or spaces in turn.
Nested = Any


def map_leaves(function: Callable[..., Any], tree: Nested, *others: Nested) -> Nested:
    """Apply `function` to corresponding leaves; the structure is that of the first tree."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, value, *(o[key] for o in others)) for key, value in tree.items()}
    return function(tree, *others)


def leaves(tree: Nested, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) pairs sorted by path, so that the order never depends on how the dict was built."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def first_leaf(tree: Nested) -> Any:
    """The first leaf in path order; every leaf of an observation has the same leading axes."""
    return next(leaves(tree))[1]


def index(tree: Nested, where: Any) -> Nested:
    """`leaf[where]` for every leaf."""
    if isinstance(tree, dict):
        return {key: index(value, where) for key, value in tree.items()}
    return tree[where]


def assign(target: Nested, where: Any, source: Nested) -> None:
    """`target_leaf[where] = source_leaf` for every leaf."""
    if isinstance(target, dict):
        for key, value in target.items():
            assign(value, where, source[key])
    else:
        target[where] = source


def copy_into(target: Nested, source: Nested) -> None:
    """Copy every leaf of `source` over the leaf of `target` in place."""
    assign(target, ..., source)
