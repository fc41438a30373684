"""`evaluate` leaves the same files whatever is played: rows, statistics, trajectories with info, videos, a grid."""

from __future__ import annotations

import csv
import json
from fractions import Fraction

import numpy as np
import pytest

av = pytest.importorskip("av")

STEPS = 8  # agent decisions per episode at most
FILMED = {  # height, width, pictures per second
    "CartPole-v1": (400, 600, Fraction(50)),
    "ALE/Breakout-v5": (210, 160, Fraction(15)),
    "oscillator/bvp": (240, 480, None),
    "oscillator/hindmarsh-rose": (240, 480, None),
    "dodgeball/box": (None, None, Fraction(50)),
    "dodgeball/forest": (None, None, Fraction(50)),
    "doom/basic": (None, None, Fraction(35, 4)),
    "doom/health_gathering_supreme": (None, None, Fraction(35, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", FILMED)
def test_all_files_are_there_and_agree(env_id, evaluate, tmp_path):
    words = ("--policy", "random", "--env", env_id, "--episodes", "2", "--video", "2", "--grid", "--dump", "--info")
    limits = (f"env.time_limit={STEPS}", "env.group_size=2")
    code, _, err = evaluate(*limits, *words, "--no-baselines", "--no-examine", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    out = tmp_path / "out"
    rows = list(csv.DictReader((out / "episodes.csv").open()))
    record = json.loads((out / "evaluation.json").read_text())
    assert record["status"] == "done"
    assert record["mean"] == pytest.approx(np.mean([float(row["return"]) for row in rows]))
    lengths = [int(row["length"]) for row in rows]
    assert len(lengths) == 2
    for number, length in enumerate(lengths):
        dump = np.load(out / "trajectories" / f"episode-{number:05}.npz")
        assert len(dump["reward"]) == length
        assert float(rows[number]["return"]) == pytest.approx(dump["reward"].sum(), rel=1e-5)
        infos = (out / "trajectories" / f"episode-{number:05}.info.jsonl").read_text().splitlines()
        assert len(infos) == length + 1
        filmed(out / "video" / f"episode-{number:05}.mp4", length + 1, *FILMED[env_id])
    filmed(out / "video" / "grid.mp4", max(lengths) + 1, None, None, FILMED[env_id][2])


def filmed(file, count, height, width, rate):
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert rate is None or stream.average_rate == pytest.approx(rate, rel=1e-3)
    assert len(pictures) == count
    assert all(side % 2 == 0 for side in pictures[0].shape[:2])
    assert (height, width) in ((None, None), pictures[0].shape[:2])
    assert pictures[0].std() > 5, "something is to be seen"
