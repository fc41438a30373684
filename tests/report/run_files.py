"""Run folders written by hand, so that every number of a report can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = """\
seed: {seed}
env: {{id: {env}, args: {{}}}}
algorithm: {{name: ppo, learning_rate: {rate}}}
runtime: {{pin: true}}
train: {{steps: 1000}}
observe: {{console: {console}}}
"""


def write_run(
    folder: Path,
    seed: int = 1,
    returns: Sequence[float] = (10.0, 20.0, 30.0),
    *,
    env: str = "CartPole-v1",
    rate: float = 0.1,
    console: str = "auto",
    status: str = "done",
    **summary: Any,
) -> Path:
    """A run with one episode per update of 100 steps and 6 seconds."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"git_commit": "0123456789abcdef+changes"}))
    (folder / "config.yaml").write_text(CONFIG.format(seed=seed, env=env, rate=rate, console=console))
    rows = [f"{100 * n},{6 * n},{value},7,0" for n, value in enumerate(returns, start=1)]
    (folder / "episodes.csv").write_text("\n".join(["env_steps,seconds,return,length,truncated", *rows, ""]))
    speeds = [f"{100 * n},{6 * n},{10 + n}" for n, _ in enumerate(returns, start=1)]
    (folder / "metrics.csv").write_text("\n".join(["env_steps,seconds,steps_per_second", *speeds, ""]))
    facts = {
        "status": status,
        "reason": "all steps made",
        "env_steps": 100 * len(returns),
        "returns": {"mean_100": sum(returns) / len(returns), "best_mean_100": max(returns), "greedy": 50.0},
        "random_baseline": {"return": 5.0, "episodes": 20},
        "throughput": {"steps_per_second": 16.7, "seconds": 18.0, "time": {"env": 0.25, "learn": 0.75}},
        "parameters_sha256": f"{seed:064x}",
        "resume_grade": "exact",
        "failures": {"workers": [], "environments": 2, "quarantined": 0},
        **summary,
    }
    (folder / "summary.json").write_text(json.dumps(facts))
    return folder
