"""The table at the end of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.play.evaluation_folder import closing_table


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"trajectories": 1, "video": 2}, "out (1 trajectory, 2 videos)"),
        ({"trajectories": 20, "video": 1}, "out (20 trajectories, 1 video)"),
        ({"trajectories": 0, "video": 0}, "out"),
    ],
)
def test_files_are_told_as_one_or_several(files: dict[str, int], told: str) -> None:
    numbers = dict.fromkeys(("mean", "low", "high", "median", "length"), 1.0)
    record = {
        **numbers,
        "env": "CartPole-v1",
        "player": "policy",
        "status": "done",
        "seconds": 1.0,
        "episodes": 1,
        "baselines": {},
        "failed": {"episodes": 1, "messages": ["boom"]},
        "files": files,
    }
    assert closing_table(record, Path("out"))[-2:] == ["  failed  1 episode, the first: boom", f"  files   {told}"]
