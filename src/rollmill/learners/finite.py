"""The detector of NaN and infinite values from environments, with the place they came from."""

from __future__ import annotations

from typing import Any

from rollmill import nested
from rollmill.errors import Detected
from rollmill.stores.store import Owner


def refuse_nonfinite(parts: list[dict[str, Any]], owners: list[list[Owner]], update: int) -> None:
    """Stop at the first number that is not finite; `parts` is the batch, or its unrolls one by one."""
    for part, whose in zip(parts, owners, strict=True):
        for what, leaf in _suspects(part):
            if not leaf.is_floating_point() or bool(leaf.isfinite().all()):
                continue
            first = (~leaf.isfinite()).nonzero()[0].tolist()
            if what.startswith("final"):  # one row for every ended episode, in row-major order
                first = (part["terminated"] | part["truncated"]).nonzero()[first[0]].tolist()
            step, column = first[:2]
            ticket, environment, _ = whose[column]
            raise Detected(
                f"update {update}: {what} of environment {environment} in group {ticket.actor} is not finite "
                f"at step {step} of unroll {ticket.sequence}; fix the environment"
            )


def _suspects(part: dict[str, Any]) -> list[tuple[str, Any]]:
    found = [("reward", part["reward"]), ("return", part["episode_return"])]  # the latter is raw, before any clip
    for field, name in (("obs", "observation"), ("final_obs", "final observation")):
        if field in part:
            found += [(f"{name} {path}".strip(), leaf) for path, leaf in nested.leaves(part[field])]
    return found
