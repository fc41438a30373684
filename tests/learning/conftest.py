"""Training for the tests of learning, also with the roundings of a CPU that is not at hand.

Another CPU rounds differently in the last bits, and training makes other runs of them. Initial weights that are scaled
by (1 + 1e-7 · noise) do the same: half of them move to the next float or the one after it.
"""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollmill.doctor.preflight import draw_blueprint
from rollmill.experiment import Experiment, load_config
from rollmill.models.weights import weights_of

QUIET = {"observe.console": "none", "observe.tensorboard": False, "observe.curve": False, "observe.final_seconds": 120}


@pytest.fixture
def trained(tmp_path):
    """A function that trains to the end in a folder of its own and returns the finished experiment."""
    count = 0

    def train(source, *, perturbed=False, **changes):
        nonlocal count
        count += 1
        loaded = load_config(source, QUIET | changes)
        start_from = tmp_path / f"start-{count}.safetensors" if perturbed else None
        if start_from is not None:
            save_file(rounded_differently(loaded.config), start_from)
        experiment = Experiment(loaded, tmp_path / f"run-{count}", start_from=start_from)
        for _ in experiment.run():
            pass
        return experiment

    return train


def rounded_differently(config):
    """The initial weights of a run, changed in their last bits."""
    noise = np.random.default_rng(config.seed)
    return {
        name: np.asarray(array * (1 + 1e-7 * noise.standard_normal(array.shape)), array.dtype)
        for name, array in weights_of(draw_blueprint(config).network("cpu")).items()
    }
