"""rollmill: a mill for rollouts.

rollmill.train("configs/ppo/cartpole.yaml", seed=3) -> Run
rollmill.resume(run) -> Run
rollmill.evaluate(run, episodes=20) -> how good its policy is, versus baselines
rollmill.load(run) -> policy: policy(obs) -> action, policy.reset()
rollmill.make_env("oscillator/bvp") -> gymnasium.Env, for other libraries
rollmill.Experiment(rollmill.load_config(…)).run() -> events
rollmill.Hooks: the base of observers of your own
rollmill.portable(): before every other import, for `runtime.numerics: portable`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmill.envs.single import make_env
    from rollmill.experiment import Experiment, Run, load, load_config, resume, train
    from rollmill.numerics import portable
    from rollmill.observe.hooks import Hooks
    from rollmill.play.evaluate import evaluate

__all__ = ["Experiment", "Hooks", "Run", "evaluate", "load", "load_config", "make_env", "portable", "resume", "train"]

_ELSEWHERE = {
    "Hooks": "rollmill.observe.hooks",
    "evaluate": "rollmill.play.evaluate",
    "make_env": "rollmill.envs.single",
    "portable": "rollmill.numerics",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import rollmill` and `rollmill --help` stay fast without torch."""
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "rollmill.experiment")), name)
    raise AttributeError(f"module 'rollmill' has no attribute '{name}'")
