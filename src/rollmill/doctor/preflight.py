"""From a configuration to a checked graph: everything that can be refused is refused here, before training."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rollmill.algorithms.registry import find_recipe
from rollmill.doctor.env_check import check_group
from rollmill.doctor.model_check import check_network, refuse_unread
from rollmill.errors import Refused
from rollmill.launch.process import usable_cores
from rollmill.models.network import Network
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import DevicesConfig
from rollmill.settings import ExperimentConfig

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # a user who sets one of them has chosen how threads wait


def draw_blueprint(config: ExperimentConfig, spare_slots: int = 0, is_new: bool = True) -> Blueprint:
    """Check the parts against each other and against the environment's spaces.

    `spare_slots` are those of each actor for observers of trajectories. A run that is not new may have settings that
    nothing reads: those that came after it was begun (`load_run_config`).
    """
    recipe = find_recipe(config.algorithm.name)
    is_offline = recipe.topology.kind == "offline"
    if is_offline and config.train.updates is None:
        raise Refused(
            f"train.steps={config.train.steps}: algorithm.name={recipe.name} plays no environment in training and "
            "makes no steps; set train.updates instead"
        )
    if config.runtime.workers > config.env.groups and not is_offline:
        raise Refused(
            f"runtime.workers={config.runtime.workers} is more than env.groups={config.env.groups}, so some would have "
            f"nothing to do; set runtime.workers={config.env.groups} or raise env.groups"
        )
    _check_devices(config.runtime.devices)
    spaces = check_group(config.env)
    blueprint = Blueprint(
        seed=config.seed,
        env=config.env,
        model=config.model,
        algorithm=config.algorithm,
        train=config.train,
        runtime=config.runtime,
        recipe=recipe,
        **spaces._asdict(),
        spare_slots=spare_slots,
    )
    try:
        network = blueprint.network("cpu")
    except (RuntimeError, MemoryError) as error:  # of torch's allocator
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"{config.model.setting}: the network can't be built: {reason}; make it smaller") from error
    if isinstance(network, Network):  # policy and value; a model of another shape has checks of its own
        check_network(network, spaces.observation_space, spaces.action_space)
        if is_new:
            refuse_unread(config.model, network, spaces.observation_space, spaces.action_space)
    if is_offline:
        return blueprint
    flow = blueprint.flow
    if flow.unrolls > config.env.groups * flow.in_flight:
        raise Refused(
            f"algorithm.unrolls={flow.unrolls} is more than there can be in flight: env.groups={config.env.groups} × "
            f"algorithm.in_flight={flow.in_flight}; raise one of these"
        )
    config.algorithm.check_batch(flow.unrolls * config.env.group_size, network.is_recurrent)
    return blueprint


def oversubscribed_threads(blueprint: Blueprint, variables: Mapping[str, str] = os.environ) -> str | None:
    """A warning where asynchronous training would be many times slower than with one learner thread.

    The threads of an operation wait for each other in busy loops, for milliseconds, and block an actor that has to
    share a core with them. It can't be changed from here: OpenMP reads the variables when torch is loaded.
    """
    threads, workers, cores = blueprint.runtime.threads.learner, blueprint.runtime.workers, len(usable_cores())
    if not blueprint.overlaps or threads == 1 or threads + workers <= cores:
        return None
    if any(name in variables for name in WAITING):
        return None
    return (
        f"runtime.threads.learner={threads} with {workers} worker{'s' if workers > 1 else ''} on {cores} cores: "
        "threads that wait for each other keep the workers' cores busy; "
        "set it to 1, or OMP_WAIT_POLICY=passive in the environment"
    )


def _check_devices(devices: DevicesConfig) -> None:
    import torch

    for role, device in devices.model_dump().items():
        if device != "cpu" and not torch.cuda.is_available():
            raise Refused(f"runtime.devices.{role}={device} but torch finds no CUDA device here; set it to cpu")
