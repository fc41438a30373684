"""Every algorithm by name."""

from __future__ import annotations

from rollmill.algorithms import appo, ppo, vpg
from rollmill.algorithms.recipe import Recipe
from rollmill.errors import Refused, nearest

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (ppo.RECIPE, appo.RECIPE, vpg.RECIPE)}


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise Refused(f"algorithm.name={name!r} is unknown; {nearest(name, list(RECIPES))}")
    return RECIPES[name]
