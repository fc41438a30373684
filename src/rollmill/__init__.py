"""rollmill: a mill for rollouts.

rollmill.train("configs/ppo/cartpole.yaml", seed=3) -> Run
rollmill.resume(run) -> Run
rollmill.load(run) -> policy: policy(obs) -> action, policy.reset()
rollmill.Experiment(rollmill.load_config(…)).run() -> events
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmill.experiment import Experiment, Run, load, load_config, resume, train

__all__ = ["Experiment", "Run", "load", "load_config", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use: `import rollmill` and `rollmill --help` stay fast without torch."""
    if name in __all__:
        return getattr(import_module("rollmill.experiment"), name)
    raise AttributeError(f"module 'rollmill' has no attribute '{name}'")
